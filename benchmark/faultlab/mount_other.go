//go:build !linux

package faultlab

import (
	"os/exec"

	"github.com/gohedge/hedge/internal/netsim"
)

func setOwnMounts(*exec.Cmd) {}

func mountResolvConf(string) error { return netsim.ErrUnsupported }
