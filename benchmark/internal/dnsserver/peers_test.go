package dnsserver_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/benchmark/internal/dnsserver"
)

func TestPeersReplaceProgramsInPath(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "server")
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755))
	t.Setenv("PATH", dir)
	require.NoError(t, os.Symlink(program, filepath.Join(dir, "kresd")))

	peers := make(dnsserver.PeerCommands)
	require.NoError(t, peers.SetCommand("unbound=first"))
	require.NoError(t, peers.SetCommand("unbound="+program+"  /root name=value"))
	cmd, err := peers.CommandWithConfig(dir, "text", "unbound", "-c")
	require.NoError(t, err)
	file := filepath.Join(dir, "unbound.conf")
	assert.Equal(t, []string{program, "/root", "name=value", "-c", file}, cmd.Args)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "text", string(text))

	cmd, err = peers.Command("kresd", "-n")
	require.NoError(t, err)
	assert.Equal(t, []string{filepath.Join(dir, "kresd"), "-n"}, cmd.Args, "the program in PATH")
}

func TestMissingPeersAreNotFound(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	peers := make(dnsserver.PeerCommands)
	require.NoError(t, peers.SetCommand("sdns=/nowhere/sdns"))
	for name, says := range map[string]string{"sdns": "/nowhere/sdns", "hickory": "hickory-dns"} {
		_, err := peers.Command(name)
		assert.ErrorIs(t, err, exec.ErrNotFound)
		assert.ErrorContains(t, err, says)
	}
}

func TestContendersBelongToPeers(t *testing.T) {
	for contender, peer := range map[string]string{"unbound": "unbound", "unbound-validate": "unbound", "hedge-off": "", "forwarder": "", "unboundary": ""} {
		assert.Equal(t, peer, dnsserver.PeerOf(contender), contender)
	}
}

// Each forwarder is configured for each of its transports; a server program that is always there stands for all.
func TestForwardersHaveCommandsForTheirTransports(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "server")
	require.NoError(t, os.WriteFile(program, nil, 0o755))
	peers := make(dnsserver.PeerCommands)
	for _, name := range dnsserver.PeerNames() {
		require.NoError(t, peers.SetCommand(name+"="+program))
	}
	for _, name := range append([]string{"forwarder"}, dnsserver.PeerNames()...) {
		for _, transport := range dnsserver.SupportedTransports[name] {
			f := dnsserver.ForwarderConfig{Peers: peers, Dir: dir, Upstreams: []string{"192.0.2.7", "192.0.2.8"}, Transport: transport, ServerName: "dns.example", CertificateFile: "roots.pem"}
			cmd, err := f.Command(name)
			require.NoError(t, err, name)
			text, _ := os.ReadFile(filepath.Join(dir, name+".conf")) // absent if the arguments are the configuration
			all := strings.Join(slices.Concat(cmd.Args, cmd.Env, []string{string(text)}), " ")
			for _, address := range f.Upstreams {
				assert.Contains(t, all, address, "%s over %s", name, transport)
			}
			assert.Equal(t, transport != "udp", strings.Contains(all, "roots.pem") || name == "pdns" && strings.Contains(all, ":853"), "%s over %s", name, transport)
		}
	}
	_, err := dnsserver.ForwarderConfig{}.Command("bind")
	assert.ErrorContains(t, err, `"bind"`)
}
