//go:build !windows && !darwin

package system

// systemConf is the file with the system's servers.
const systemConf = "/etc/resolv.conf"

// askSystem is nil, because systemConf is the whole configuration.
var askSystem func() (Configuration, error)
