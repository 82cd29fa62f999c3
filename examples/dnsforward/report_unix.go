//go:build unix

package main

import (
	"os"
	"syscall"
)

// reportSignals are the signals after which the forwarder writes its statistics.
var reportSignals = []os.Signal{syscall.SIGUSR1}
