//go:build unix

package main

import (
	"os"
	"syscall"
)

// reportSignals make the forwarder print its figures.
var reportSignals = []os.Signal{syscall.SIGUSR1}
