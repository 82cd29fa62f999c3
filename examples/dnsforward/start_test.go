package main

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestRunReportsInvalidFlagsBeforeListening(t *testing.T) {
	args, flags := os.Args, flag.CommandLine
	defer func() { os.Args, flag.CommandLine = args, flags }()
	for want, given := range map[string][]string{
		"Client.Hosts: stat /no/such/file": {"-hosts", "/no/such/file"},
		"Hedge.BudgetPercent is 200":       {"-budget", "200"},
		"Cache.MaxBytes is -1":             {"-cache", "-1"},
	} {
		flag.CommandLine = flag.NewFlagSet("dnsforward", flag.ContinueOnError)
		os.Args = append([]string{"dnsforward", "-listen", "an address at which nothing can listen"}, given...)
		assert.ErrorContains(t, run(), want, given)
	}
}
