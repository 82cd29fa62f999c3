package readonly_test

import (
	"bufio"
	"compress/gzip"
	"hash/fnv"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/readonly"
)

// A labelled method is a line of testdata/methods.tsv.gz, whose README explains the labels.
type labelled struct{ service, name, label string }

func corpus(t *testing.T) (all []labelled) {
	f, err := os.Open("testdata/methods.tsv.gz")
	require.NoError(t, err)
	defer f.Close()
	plain, err := gzip.NewReader(f)
	require.NoError(t, err)
	lines := bufio.NewScanner(plain)
	for lines.Scan() {
		method, label, _ := strings.Cut(lines.Text(), "\t")
		service, name, ok := strings.Cut(strings.TrimPrefix(method, "/"), "/")
		require.True(t, ok, lines.Text())
		all = append(all, labelled{service, name, label})
	}
	require.NoError(t, lines.Err())
	require.Greater(t, len(all), 14000)
	return all
}

// shares are the numbers of methods of a part of the corpus that are hedged.
type shares struct {
	reads, declared int // methods that read; those of them that declare it
	byName          int // reads that are hedged by their name
	either          int // reads that declare it or are hedged by their name
	harmful         int // methods that write or take
	wrong           []string
}

func measure(methods []labelled, part func(service string) bool) (s shares) {
	for _, m := range methods {
		if !part(m.service) {
			continue
		}
		hedged := readonly.ReadsByName(m.name)
		switch m.label {
		case "declared", "read":
			s.reads++
			if m.label == "declared" {
				s.declared++
			}
			if hedged {
				s.byName++
			}
			if hedged || m.label == "declared" {
				s.either++
			}
		case "write", "takes":
			s.harmful++
			if hedged {
				s.wrong = append(s.wrong, "/"+m.service+"/"+m.name)
			}
		}
	}
	return s
}

func (s shares) percent(n int) float64 { return 100 * float64(n) / float64(s.reads) }

// TestReadsByNameRejectsWritingMethodsOfCorpus checks that no writing method of the corpus is classified as reading. The words were chosen
// with the corpus, so zero here does not promise zero elsewhere. Both parts of the corpus, which are split by service, give similar shares,
// so the words do not fit one part only.
func TestReadsByNameRejectsWritingMethodsOfCorpus(t *testing.T) {
	methods := corpus(t)
	seventy := func(service string) bool {
		h := fnv.New32a()
		h.Write([]byte(service))
		return h.Sum32()%10 < 7
	}
	for part, in := range map[string]func(string) bool{
		"70 %": seventy,
		"30 %": func(service string) bool { return !seventy(service) },
	} {
		s := measure(methods, in)
		assert.Empty(t, s.wrong, part)
		assert.GreaterOrEqual(t, s.percent(s.byName), 84.0, part)
		t.Logf("%s of the services: %d of %d methods that read are hedged by their names (%.1f %%), %d declare it (%.1f %%); of %d that write or take, %d are hedged",
			part, s.byName, s.reads, s.percent(s.byName), s.declared, s.percent(s.declared), s.harmful, len(s.wrong))
	}
}

// TestRuleListsWordsNotMethods checks that the rule does not list methods of the corpus: lists have single words, and the only listed
// method names belong to widely used services.
func TestRuleListsWordsNotMethods(t *testing.T) {
	for _, class := range readonly.Classes() {
		for _, w := range strings.Fields(class[1]) {
			_, others, ok := readonly.SplitName(w)
			assert.True(t, ok && len(others) == 0, w)
		}
	}
	assert.Len(t, readonly.MisleadingNames, 6)
}

// TestSiblingsExcludeFewReads measures the share of reading methods that are not hedged because of another method of their service.
func TestSiblingsExcludeFewReads(t *testing.T) {
	methods := corpus(t)
	services := make(map[string][]string)
	for _, m := range methods {
		services[m.service] = append(services[m.service], m.name)
	}
	reads, takes := 0, 0
	for _, m := range methods {
		if m.label != "read" || !readonly.ReadsByName(m.name) {
			continue
		}
		reads++
		for _, sibling := range services[m.service] {
			if readonly.ReturnsObject(sibling, m.name) {
				takes++
				t.Logf("/%s/%s is sent once because of %s", m.service, m.name, sibling)
				break
			}
		}
	}
	require.Greater(t, reads, 800)
	assert.Less(t, takes, reads/50)
}
