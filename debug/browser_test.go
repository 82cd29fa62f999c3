package debug_test

import (
	"fmt"
	"html"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/debug"
	"github.com/gohedge/hedge/observe"
)

// measure writes what is wider than the card that it is in, or than the window, or than itself, into the page.
const measure = `<script>
const wide = [];
const name = e => e.tagName + "." + e.getAttribute("class") + " " + e.textContent.trim().slice(0, 60);
if (document.documentElement.scrollWidth > window.innerWidth) wide.push("the page: " + document.documentElement.scrollWidth);
for (const card of document.querySelectorAll("section")) {
  const room = card.getBoundingClientRect();
  for (const e of card.querySelectorAll("*")) {
    const r = e.getBoundingClientRect();
    if (r.width > 0 && (r.right > room.right + 0.5 || r.left < room.left - 0.5)) wide.push(name(e));
    const cut = getComputedStyle(e).textOverflow == "ellipsis"; // on purpose: its title has the whole
    if (e.matches("td, th, dd, dt") && !cut && e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1) wide.push("text of " + name(e));
  }
}
const out = document.createElement("pre");
out.id = "wide";
out.textContent = window.innerWidth + "|" + matchMedia("(prefers-color-scheme: dark)").matches + "|" + wide.join("\n");
document.body.append(out);
</script>`

// TestPageFitsBrowserWindow lays pages out in a headless Chromium. It is skipped where there is none.
func TestPageFitsBrowserWindow(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	plain := newCrowdedSnapshot(false)
	for i := range plain.Keys {
		plain.Keys[i].Audit = nil
	}
	pages := map[string][]debug.Source{
		"audited":     {newCrowdedSnapshot(false), newCrowdedSnapshot(true), newClientSnapshot(false), debug.DNS(newDNSStats(false))},
		"not audited": {plain, debug.DNS(newDNSStats(true))},
		"recursor":    {debug.Recursor(newCrowdedRecursorStats())},
		"stores":      {debug.Store(strings.Repeat("x", 200), newStoreStats()), debug.Store("", newStoreStats())},
	}
	for title, sources := range pages {
		page := strings.Replace(getPage(debug.Handler(sources...), "/?refresh=0").Body.String(), "</body>", measure+"</body>", 1)
		file := filepath.Join(t.TempDir(), "page.html")
		require.NoError(t, os.WriteFile(file, []byte(page), 0o600))
		for _, width := range []int{1280, 500} {
			for scheme, dark := range []bool{true, false} { // as Blink numbers them
				t.Run(fmt.Sprintf("%s at %d, dark %t", title, width, dark), func(t *testing.T) {
					dom, err := exec.CommandContext(t.Context(), chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
						"--user-data-dir="+t.TempDir(), fmt.Sprintf("--window-size=%d,2000", width),
						fmt.Sprintf("--blink-settings=preferredColorScheme=%d", scheme), "--dump-dom", "file://"+file).Output()
					require.NoError(t, err)
					found := regexp.MustCompile(`(?s)<pre id="wide">(.*?)</pre>`).FindSubmatch(dom)
					require.NotNil(t, found, "%s", dom)
					assert.Equal(t, fmt.Sprintf("%d|%t|", width, dark), html.UnescapeString(string(found[1])))
				})
			}
		}
	}
}

// newCrowdedRecursorStats returns a recursor whose bogus names are as long as names are.
func newCrowdedRecursorStats() recursorStats {
	s := newRecursorStats()
	name := strings.Repeat(strings.Repeat("x", 62)+".", 4)
	s.LastBogus = append(s.LastBogus, observe.RecursorBogus{
		Name: name, Type: "TYPE65534", Reason: observe.ExtendedError(27), Zone: name, Text: strings.Repeat("the signature of "+name+" has ended, ", 3),
		Server: netip.MustParseAddrPort("[2001:db8:1111:2222:3333:4444:5555:6666]:53"),
	})
	return s
}
