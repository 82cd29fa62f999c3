package system

import (
	"context"
	"fmt"
	"os/exec"
	"time"
)

// systemConf contains the servers of the first network service only. It is read where scutil is missing.
const systemConf = "/etc/resolv.conf"

// askSystem returns the servers of macOS, including the servers for single domains, which a VPN or a file in
// /etc/resolver sets.
var askSystem = func() (Configuration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "/usr/sbin/scutil", "--dns").Output()
	if err != nil {
		return Configuration{}, fmt.Errorf("dnshedge: scutil --dns: %w", err)
	}
	return ParseScutil(string(out)), nil
}
