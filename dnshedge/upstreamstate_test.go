package dnshedge_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/dnshedge"
)

// Stats and Save take the Client's lock before the servers'.
func TestAServersLockIsNotHeldWhileTheClientsIsWaitedFor(t *testing.T) {
	c := &dnshedge.Client{Upstreams: []dnshedge.Upstream{{Addr: "127.0.0.1:1"}}}
	defer c.Close()
	assert.True(t, dnshedge.ProbeUnderLock(c))
}
