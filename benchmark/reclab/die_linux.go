package reclab

import (
	"os/exec"
	"syscall"
)

// killWithParent makes the kernel kill the program cmd when this process is killed, or when the thread that starts the
// program ends.
func killWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
