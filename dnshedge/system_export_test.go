package dnshedge

import "github.com/gohedge/hedge/dnshedge/internal/system"

// AskScutil makes the Client parse the given output of scutil, instead of asking the system.
func AskScutil(c *Client, scutil func() (string, error)) error {
	core, err := c.init()
	if err != nil {
		return err
	}
	core.servers.system.Ask = func() (system.Configuration, error) {
		out, err := scutil()
		return system.ParseScutil(out), err
	}
	return nil
}
