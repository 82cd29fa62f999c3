package dnshedge_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
)

func TestTheZeroClientAsksTheSystemsServers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(lines ...string) {
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	}
	bubble(t, func(l *lab) {
		l.serve("a", with("A 192.0.2.1"))
		l.serve("b", with("A 192.0.2.2"))
		write("# a comment", "nameserver "+l.net.Host("a").Addr().String(), "options ndots:5")
		c := l.client(&dnshedge.Client{ResolvConf: file})
		r, _ := l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r))
		write("nameserver " + l.net.Host("b").Addr().String() + " ")
		r, _ = l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.1", addr(r), "looked at every five seconds")
		time.Sleep(5 * time.Second)
		r, _ = l.must(c, "x.example.")
		assert.Equal(t, "192.0.2.2", addr(r))
		require.NoError(t, os.Remove(file))
		time.Sleep(5 * time.Second)
		_, _, err := l.ask(c, "x.example.")
		require.ErrorContains(t, err, "127.0.0.1:53")
	})
}
