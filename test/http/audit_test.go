package http_test

import (
	"net/http"
	"testing"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/doubles"
	"github.com/gohedge/hedge/test/internal/fixture"
)

func TestAuditDisablesHedgingThatIncreasesLatency(t *testing.T) {
	fixture.CheckAuditOfHarm(t, "http", func(t *testing.T, s *fixture.LoadedServer, opts ...hedge.Option) (func(), func() hedge.Snapshot) {
		rt := new(doubles.RoundTripper)
		rt.Answer = func(req *http.Request, _ int) (*http.Response, error) {
			if err := s.Answer(req.Context()); err != nil {
				return nil, err
			}
			return rt.Response(req, http.StatusOK, ""), nil
		}
		tr := hedge.New(rt, hedge.WithOptions(opts...))
		return func() {
			if resp, err := get(t, tr, site); err == nil {
				_ = resp.Body.Close()
			}
		}, tr.Snapshot
	})
}
