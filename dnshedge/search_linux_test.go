package dnshedge_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/dnstest"
)

// resolvConfEnv is the variable with the file that TestMain mounts over /etc/resolv.conf.
const resolvConfEnv = "DNSHEDGE_TEST_RESOLV_CONF"

func init() {
	mountResolvConf = func() error {
		file := os.Getenv(resolvConfEnv)
		if file == "" {
			return nil
		}
		return syscall.Mount(file, "/etc/resolv.conf", "", syscall.MS_BIND, "")
	}
}

// runWithResolvConf runs this test in a process of its own, in which /etc/resolv.conf is the file with the given text.
// It skips the test if the system allows no mount namespace.
func runWithResolvConf(t *testing.T, text string) {
	cmd := exec.Command(os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), resolvConfEnv+"="+write(t, filepath.Join(t.TempDir(), "resolv.conf"), text))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOSPC) || strings.Contains(string(out), errNoMount) {
		t.Skipf("no mount namespace: %v %s", err, out)
	}
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "PASS")
}

// TestCompleteNamesSaveSearchQueries compares the questions of a dial, by Go's own resolver, with the table in
// docs/design/benchmarks-lookups.md.
func TestCompleteNamesSaveSearchQueries(t *testing.T) {
	page, err := os.ReadFile("../docs/design/benchmarks-lookups.md")
	require.NoError(t, err)
	for _, domains := range []string{
		"shop.svc.cluster.local svc.cluster.local cluster.local",
		"shop.svc.cluster.local svc.cluster.local cluster.local eu.cluster.local us.cluster.local",
	} {
		n := len(strings.Fields(domains))
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if os.Getenv(resolvConfEnv) == "" {
				runWithResolvConf(t, "nameserver 127.0.0.1\nsearch "+domains+"\noptions ndots:5\n")
				return
			}
			searched, searchedNames, misses := questionsOfDial(t, false)
			complete, completeNames, none := questionsOfDial(t, true)
			assert.Equal(t, []int{2 + 2*n, n + 1, 2, 1}, []int{searched, searchedNames, complete, completeNames})
			assert.EqualValues(t, 2*n, misses)
			assert.Zero(t, none)
			assert.Contains(t, string(page), fmt.Sprintf("| %d | %d | %d | %d | %d |\n", n, searched, searchedNames-1, complete, completeNames-1))
		})
	}
}

// questionsOfDial dials a host once. It returns the number of questions that the DNS server gets, the number of names in
// them, and the Client's search misses.
func questionsOfDial(t *testing.T, complete bool) (questions, names int, misses int64) {
	var mu sync.Mutex
	asked := make(map[string]int)
	s := &dnstest.Server{Handler: func(q dnstest.Query) dnstest.Reply {
		mu.Lock()
		defer mu.Unlock()
		asked[q.Question[0].Name]++
		return inCluster(q)
	}}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	s.ServeUDP(pc)
	defer s.Close()
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: pc.LocalAddr().String()}}, Hedge: dnshedge.Hedge{Off: true}}
	defer c.Close()
	host, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer host.Close()
	_, port, _ := net.SplitHostPort(host.Addr().String())

	var d dnshedge.Dialer = &net.Dialer{Resolver: c.Resolver()}
	if complete {
		d = dnshedge.CompleteNames(d)
	}
	conn, err := d.DialContext(t.Context(), "tcp", "api.example.com:"+port)
	require.NoError(t, err)
	conn.Close()
	mu.Lock()
	defer mu.Unlock()
	for _, n := range asked {
		questions += n
	}
	return questions, len(asked), c.Stats().SearchMisses
}
