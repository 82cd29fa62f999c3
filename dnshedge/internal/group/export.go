package group

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/sketch"
)

// Learned is what an export says of a server.
type Learned struct {
	Name            string
	srtt, handshake time.Duration
	answers, path   *sketch.Window
}

// AppendLearned appends what was learned of the server.
func (s *Server) AppendLearned(b []byte, now time.Time) []byte {
	l := &s.learner
	l.mu.Lock()
	defer l.mu.Unlock()
	b = decode.AppendBytes(b, s.Name)
	b = binary.AppendUvarint(b, uint64(l.srtt))
	b = binary.AppendUvarint(b, uint64(l.handshake))
	b = decode.AppendBytes(b, l.answers.Append(nil, now))
	return decode.AppendBytes(b, l.path.Append(nil, now))
}

// DecodeLearned takes off what AppendLearned has appended. Fields are limit bytes long at most.
func DecodeLearned(d *decode.Decoder, limit uint64, now time.Time) (l Learned, err error) {
	l = Learned{Name: string(d.Bytes(limit)), srtt: d.Duration(), handshake: d.Duration()}
	for _, w := range [...]**sketch.Window{&l.answers, &l.path} {
		if *w, err = sketch.Decode(d.Bytes(limit), now); err != nil {
			return l, fmt.Errorf("%w: %w", decode.ErrDamaged, err)
		}
	}
	return l, nil
}

// Learn adds what was learned elsewhere.
func (s *Server) Learn(from Learned) {
	l := &s.learner
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers.Merge(from.answers)
	l.path.Merge(from.path)
	l.sent, l.got = l.sent+float64(from.answers.Len()), l.got+float64(from.answers.Len())
	if from.srtt > 0 {
		l.srtt = float64(from.srtt)
	}
	if from.handshake > 0 {
		l.handshake = float64(from.handshake)
	}
	l.updateDelays()
}
