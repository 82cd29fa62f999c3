package reclab

import (
	"os/exec"
	"syscall"
)

// killWithParent makes the kernel kill the process of cmd when this process is killed, or when the thread that starts
// cmd ends.
func killWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
