package readonly

import "strings"

// ReadsByName is readsByName for tests.
func ReadsByName(name string) bool {
	reads, _ := readsByName(name)
	return reads
}

// Classes returns the reasons and the words of the word classes.
func Classes() [][2]string {
	var all [][2]string
	for _, c := range wordClasses {
		all = append(all, [2]string{c.reason, strings.Join(strings.Fields(c.words), " ")})
	}
	return all
}

// ForbiddenWords are the words, in lower case, that keep a method from being hedged by its name. The only exception is a verb before a
// describing noun.
func ForbiddenWords() []string {
	var all []string
	for w, r := range wordRoles {
		if r == linkingWord || r == writingVerb || r == createdNoun {
			all = append(all, w)
		}
	}
	return all
}

// IsDescribingNoun reports whether a word turns a preceding verb into a noun.
func IsDescribingNoun(word string) bool { return describingNouns[strings.ToLower(word)] }

// DescribingNouns and MisleadingNames are exported for the test of docs/design/methods.md.
const DescribingNouns = describingNounList

var MisleadingNames = misleadingNames

// ReturnsObject is returnsObject for tests.
func ReturnsObject(sibling, name string) bool {
	first, object, ok := splitName(name)
	return ok && (first == "Get" || first == "Read") && returnsObject(sibling, object)
}

// SplitName is splitName for tests.
var SplitName = splitName

// ClassifyDescriptor is classifyDescriptor for tests.
var ClassifyDescriptor = classifyDescriptor
