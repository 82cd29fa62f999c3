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
	for _, c := range wordClasses {
		all = append(all, [2]string{c.reason, strings.Join(strings.Fields(c.words), " ")})
	}
	return all
}

// ForbiddenWords are the words that keep a method from being hedged by its name, whatever else is in it but
// a describing noun after a verb, in lower case.
func ForbiddenWords() []string {
	var all []string
	for w, r := range wordRoles {
		if r == linkingWord || r == writingVerb || r == createdNoun {
			all = append(all, w)
		}
	}
	return all
}

// IsDescribingNoun reports whether a word makes a noun of the verb before it.
func IsDescribingNoun(word string) bool { return describingNouns[strings.ToLower(word)] }

// DescribingNouns, ReturningVerbs and MisleadingNames are for docs/methods.md.
const DescribingNouns = describingNounList

var (
	ReturningVerbs  = returningVerbs
	MisleadingNames = misleadingNames
)

// ReturnsObject is returnsObject for tests.
func ReturnsObject(sibling, name string) bool {
	first, object, ok := splitName(name)
	return ok && (first == "Get" || first == "Read") && returnsObject(sibling, object)
}

// SplitName is splitName for tests.
var SplitName = splitName

// ClassifyDescriptor is judge for tests.
var ClassifyDescriptor = classifyDescriptor
