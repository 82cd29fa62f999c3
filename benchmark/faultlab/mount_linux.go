package faultlab

import (
	"fmt"
	"os/exec"
	"syscall"
)

// setOwnMounts makes the command run in a mount namespace of its own, so that its mounts are invisible to other
// processes.
func setOwnMounts(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
}

// mountResolvConf mounts file over /etc/resolv.conf in the mount namespace of this process.
func mountResolvConf(file string) error {
	if err := syscall.Mount(file, "/etc/resolv.conf", "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on /etc/resolv.conf: %w", file, err)
	}
	return nil
}
