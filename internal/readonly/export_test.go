package readonly

import "strings"

// ReadsByName is readsByName for tests.
func ReadsByName(name string) bool {
	reads, _ := readsByName(name)
	return reads
}

// Classes returns the classes of words that keep a method from being hedged by its name: why, and the words.
func Classes() [][2]string {
	var all [][2]string
	for _, c := range classes {
		all = append(all, [2]string{c.why, strings.Join(strings.Fields(c.words), " ")})
	}
	return all
}

// ForbiddenWords are the words that keep a method from being hedged by its name, whatever else is in it but
// a describing noun after a verb, in lower case.
func ForbiddenWords() []string {
	var all []string
	for w, r := range roles {
		if r == linking || r == writing || r == given {
			all = append(all, w)
		}
	}
	return all
}

// Describing reports whether a word makes a noun of the verb before it.
func Describing(word string) bool { return describingNouns[strings.ToLower(word)] }

// DescribingNouns, HandingBack and MisleadingNames are for docs/methods.md.
const DescribingNouns = describing

var (
	HandingBack     = handingBack
	MisleadingNames = misleadingNames
)

// HandsBack is handsBack for tests.
func HandsBack(sibling, name string) bool {
	first, object, ok := split(name)
	return ok && (first == "Get" || first == "Read") && handsBack(sibling, object)
}

// Split is split for tests.
var Split = split

// JudgeDescriptor is judge for tests.
var JudgeDescriptor = judge
