package forward

import (
	"bytes"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/dnshedge"
	"github.com/gohedge/hedge/internal/doubles"
)

// longQuery returns a message of 64 KiB with a HIP record, whose compressed names refer to a long name. counts has the
// numbers of records in the sections.
func longQuery(opcode byte, counts [3]byte) []byte {
	m := []byte{0, 0, opcode << 3, 0, 0, 1, 0, counts[0], 0, counts[1], 0, counts[2]}
	m = append(m, strings.Repeat("\x01a", 127)+"\x00\x00\x01\x00\x01"+"\xc0\x0c\x00\x37\x00\x01\x00\x00\x00\x00"...)
	n := (65000 - len(m)) &^ 1
	m = append(binary.BigEndian.AppendUint16(m, uint16(4+n)), 0, 2, 0, 0)
	return append(m, strings.Repeat("\xc0\x0c", n/2)...)
}

// To write out the names of such a record takes time in proportion to their length, and any client can send one in each
// message.
func TestDoHRefusesMessageCheaply(t *testing.T) {
	c := new(dnshedge.Client)
	defer c.Close()
	d := &dohHandler{
		server: &dnshedge.Server{Client: c}, access: new(accessControl),
		requests: &clientLimiter{maxPerClient: 1, byClient: make(map[netip.Addr]int)},
	}
	for rcode, query := range map[int][]byte{
		dns.RcodeFormatError:    longQuery(dns.OpcodeQuery, [3]byte{0, 0, 1}),
		dns.RcodeNotImplemented: longQuery(dns.OpcodeUpdate, [3]byte{0, 1, 0}),
	} {
		doubles.AssertMaxDuration(t, 10*time.Millisecond, func() {
			r := httptest.NewRequest(http.MethodPost, dohPath, bytes.NewReader(query))
			r.Header.Set("Content-Type", mediaType)
			w := httptest.NewRecorder()
			d.ServeHTTP(w, r)
			require.Equal(t, http.StatusOK, w.Code)
			assert.EqualValues(t, rcode, w.Body.Bytes()[3]&15)
			assert.Less(t, w.Body.Len(), 512)
		})
	}
}
