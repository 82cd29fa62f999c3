package faultlab

import (
	"fmt"
	"os/exec"
	"syscall"
)

// unshareMounts makes cmd run in a mount namespace of its own, so that other processes do not see the mounts of the
// command.
func unshareMounts(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
}

// mountResolvConf mounts file over /etc/resolv.conf in the mount namespace of this process.
func mountResolvConf(file string) error {
	if err := syscall.Mount(file, "/etc/resolv.conf", "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on /etc/resolv.conf: %w", file, err)
	}
	return nil
}
