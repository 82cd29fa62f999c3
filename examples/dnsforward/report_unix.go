//go:build unix

package main

import (
	"os"
	"syscall"
)

func init() { reportSignals = []os.Signal{syscall.SIGUSR1} }
