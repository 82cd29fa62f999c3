//go:build !unix

package main

import "os"

// reportSignals is empty: the statistics are available through -metrics.
var reportSignals []os.Signal
