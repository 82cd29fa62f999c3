package readonly_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gohedge/hedge/internal/readonly"
)

func TestEveryReadingWordBeginsANameThatReads(t *testing.T) {
	words := readonly.Words()
	for _, w := range words {
		for name, want := range map[string]bool{w: true, w + "Items": true, w + "ItemAndDelete": false, w + "ing": false, "Un" + w: false} {
			assert.Equal(t, want, readonly.Method("/a.B/"+name), name)
		}
	}
	assert.Contains(t, words, "BatchGet")
	assert.NotContains(t, words, "Batch")
}

// FuzzReadsByName checks that no name that holds a word of the table is hedged, whatever else is in it.
func FuzzReadsByName(f *testing.F) {
	var words []string
	for w := range readonly.WritingWords {
		words = append(words, w)
	}
	slices.Sort(words)
	f.Add("Get", "", uint16(0), uint8(0))
	f.Add("BatchGetURL", "Items2", uint16(7), uint8(1))
	f.Add("List_", "_x", uint16(99), uint8(2))
	f.Add("GetHTTP", "delete", uint16(3), uint8(1))
	f.Fuzz(func(t *testing.T, before, after string, word uint16, form uint8) {
		lower := words[int(word)%len(words)]
		w := strings.ToUpper(lower[:1]) + lower[1:]
		continues := 'a' <= first(after) && first(after) <= 'z'
		switch form % 3 {
		case 0: // And: a word unless lower-case letters follow, as in Android
			if continues {
				t.Skip()
			}
		case 1: // AND: a word unless capitals are around it, as in BRANDS
			w = strings.ToUpper(lower)
			if last := last(before); 'A' <= last && last <= 'Z' || 'A' <= first(after) && first(after) <= 'Z' && !(len(after) > 1 && 'a' <= after[1] && after[1] <= 'z') {
				t.Skip()
			}
		case 2: // and: a word if no letters are around it
			w = lower
			if last := last(before); 'a' <= last && last <= 'z' || 'A' <= last && last <= 'Z' || continues {
				t.Skip()
			}
		}
		assert.False(t, readonly.ReadsByName(before+w+after), "%q", before+w+after)
	})
}

func first(s string) byte { return (s + "\x00")[0] }
func last(s string) byte  { return ("\x00" + s)[len(s)] }
