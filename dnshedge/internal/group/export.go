package group

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/gohedge/hedge/internal/decode"
	"github.com/gohedge/hedge/sketch"
)

// LearnedLatencies holds the latency samples and averages of one server, which DecodeLatencies has read from an export
// of learned state.
type LearnedLatencies struct {
	Name                    string         // name of the server in the Pool
	srtt, handshake         time.Duration  // smoothed round trip time, and smoothed duration of a handshake; 0: no sample
	answerTimes, roundTrips *sketch.Window // samples, as in latencyEstimator
}

// AppendLatencies exports the learned latencies of the server. It appends them to b, in the format that DecodeLatencies
// reads, and returns the extended slice. now is the present time, from which the age of samples counts.
func (s *Server) AppendLatencies(b []byte, now time.Time) []byte {
	l := s.latencyEstimator
	l.mu.Lock()
	defer l.mu.Unlock()
	b = decode.AppendBytes(b, s.Name)
	b = binary.AppendUvarint(b, uint64(l.srtt))
	b = binary.AppendUvarint(b, uint64(l.handshakeTime))
	b = decode.AppendBytes(b, l.answerTimes.Append(nil, now))
	return decode.AppendBytes(b, l.roundTrips.Append(nil, now))
}

// DecodeLatencies reads from d the latencies that Server.AppendLatencies wrote. limit is the maximum length in bytes of
// each name and of each encoded sketch.Window. now is the present time, from which the age of samples counts.
//
// The error wraps decode.ErrDamaged if the input is invalid.
func DecodeLatencies(d *decode.Decoder, limit uint64, now time.Time) (l LearnedLatencies, err error) {
	l = LearnedLatencies{Name: string(d.Bytes(limit)), srtt: d.Duration(), handshake: d.Duration()}
	for _, w := range [...]**sketch.Window{&l.answerTimes, &l.roundTrips} {
		if *w, err = sketch.Decode(d.Bytes(limit), now); err != nil {
			return l, fmt.Errorf("%w: %w", decode.ErrDamaged, err)
		}
	}
	return l, nil
}

// MergeLatencies adds imported latencies to the learned latencies of the server. It then computes again when a query to
// the server counts as lost or as slow. Averages of the import replace present averages.
func (s *Server) MergeLatencies(from LearnedLatencies) {
	l := s.latencyEstimator
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answerTimes.Merge(from.answerTimes)
	l.roundTrips.Merge(from.roundTrips)
	l.recentQueries, l.recentAnswers = l.recentQueries+float64(from.answerTimes.Len()), l.recentAnswers+float64(from.answerTimes.Len())
	if from.srtt > 0 {
		l.srtt = float64(from.srtt)
	}
	if from.handshake > 0 {
		l.handshakeTime = float64(from.handshake)
	}
	l.updateDelays()
}
