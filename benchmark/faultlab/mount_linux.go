package faultlab

import (
	"fmt"
	"os/exec"
	"syscall"
)

// ownMounts has the command run in a mount namespace of its own.
func ownMounts(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
}

// mountResolvConf puts a file in the place of /etc/resolv.conf, in this process's mount namespace.
func mountResolvConf(file string) error {
	if err := syscall.Mount(file, "/etc/resolv.conf", "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on /etc/resolv.conf: %w", file, err)
	}
	return nil
}
