package hedge

import (
	"fmt"
	"io"
	"time"

	"github.com/gohedge/hedge/internal/engine"
)

// Export writes what was learned of latencies, for Import in another process or
// after a restart: a few hundred bytes per key, 64 MiB at most, whatever is most
// recently used first.
func (t *Transport) Export(w io.Writer) error { return t.core.export(w) }

// Import learns what another Transport has exported, so that requests are hedged
// from the first one on instead of the eleventh. It adds to what is known, and may
// be called several times, for the exports of several processes; what is measured
// from then on soon outweighs it. Keys for which there is no room, see
// [WithMaxKeys], are left out.
//
// An export that is damaged, foreign, of another version, larger than 64 MiB or older
// than a day is an error and changes nothing.
func (t *Transport) Import(r io.Reader) error { return t.core.learn(r) }

// Export writes what was learned of latencies, as [Transport.Export] does.
func (h *Hedger) Export(w io.Writer) error { return h.core.export(w) }

// Import learns what another Hedger has exported, as [Transport.Import] does.
func (h *Hedger) Import(r io.Reader) error { return h.core.learn(r) }

// Export writes what was learned of latencies, as [Transport.Export] does.
func (in *Interceptor) Export(w io.Writer) error { return in.core.export(w) }

// Import learns what another Interceptor has exported, as [Transport.Import] does.
func (in *Interceptor) Import(r io.Reader) error { return in.core.learn(r) }

func (c *core) export(w io.Writer) error {
	if err := c.engine.Export(w, time.Now()); err != nil {
		return fmt.Errorf("hedge: Export: %w", err)
	}
	return nil
}

func (c *core) learn(r io.Reader) error {
	share := func(n engine.Name) float64 {
		if r := c.config.routes; r != nil && r.exact[n.Route] != nil {
			return r.exact[n.Route].BudgetPercent / 100
		}
		return 0
	}
	keys, err := c.engine.Import(r, time.Now(), share)
	if err != nil {
		return fmt.Errorf("hedge: Import: %w", err)
	}
	c.logImport(keys)
	return nil
}
