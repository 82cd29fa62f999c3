package group_test

import (
	"strings"
	"testing"

	"github.com/gohedge/hedge/dnshedge/internal/group"
)

// While domains are recorded, each answer must be compared with them.
func BenchmarkSilentZonesRecordAnswer(b *testing.B) {
	for name, asked := range map[string]string{"usual": "www.example.com.", "long": strings.Repeat("x.", 126)} {
		b.Run(name, func(b *testing.B) {
			var z group.Zones
			missed(&z, below("dead.example.", 3)...)
			q := group.Named(asked)
			b.ReportAllocs()
			for b.Loop() {
				z.AnswerTo(q)
			}
		})
	}
}
