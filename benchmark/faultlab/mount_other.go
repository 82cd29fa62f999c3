//go:build !linux

package faultlab

import (
	"os/exec"

	"github.com/gohedge/hedge/internal/netsim"
)

// unshareMounts does nothing, because this system has no mount namespaces.
func unshareMounts(*exec.Cmd) {}

// mountResolvConf returns netsim.ErrUnsupported, because this system has no mount namespaces.
func mountResolvConf(string) error { return netsim.ErrUnsupported }
