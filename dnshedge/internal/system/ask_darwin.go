package system

import (
	"context"
	"fmt"
	"os/exec"
	"time"
)

// systemConf has the servers of the first network service only. It is read where there is no
// scutil.
const systemConf = "/etc/resolv.conf"

// askSystem returns macOS's servers, with the servers that a VPN or a file in /etc/resolver sets for some domains.
var askSystem = func() (Configuration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "/usr/sbin/scutil", "--dns").Output()
	if err != nil {
		return Configuration{}, fmt.Errorf("dnshedge: scutil --dns: %w", err)
	}
	return ParseScutil(string(out)), nil
}
