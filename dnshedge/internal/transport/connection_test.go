package transport_test

import (
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge/internal/transport"
	"github.com/gohedge/hedge/internal/dnstest"
)

// owner is an Owner that counts ignored messages.
type owner struct{ ignored int }

func (o *owner) RecordQuery()                              {}
func (o *owner) RecordAnswer(time.Duration, time.Duration) {}
func (o *owner) RecordHandshake(time.Duration)             {}
func (o *owner) RecordIgnored(error)                       { o.ignored++ }
func (o *owner) RecordRetry()                              {}
func (o *owner) TryBeginAbandonedQuery() bool              { return true }
func (o *owner) EndAbandonedQuery()                        {}
func (o *owner) AbandonedQueryLifetime() time.Duration     { return time.Second }
func (o *owner) StallTimeout() time.Duration               { return time.Second }

func FuzzFrames(f *testing.F) {
	frame := func(b []byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...) }
	r, err := dnstest.Rcode(dnstest.Query{Msg: new(dns.Msg).SetQuestion(".", dns.TypeNS)}, 0).Pack()
	require.NoError(f, err)
	f.Add(frame(r))
	f.Add(append(frame(r), frame(r)[:9]...))
	f.Add([]byte{0, 3, 1, 2, 3})
	f.Add([]byte{0xff, 0xff, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Write(b)
			theirs.Close()
		}()
		var o owner
		transport.ReadFrames(&o, ours)
		if n := len(b)/(2+12) + 1; o.ignored > n {
			t.Fatalf("%d messages in %d bytes", o.ignored, len(b))
		}
	})
}
