package resolvers

import (
	"os/exec"
	"syscall"
)

// dieWithParent ends the program when this process is killed, or the thread that starts it ends.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
