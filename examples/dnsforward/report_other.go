//go:build !unix

package main

import "os"

// reportSignals is empty: the figures are at -metrics.
var reportSignals []os.Signal
