package readonly

import (
	"slices"
	"strings"
)

// readsByName guesses from the name of a method whether the method only reads. The result why is the reason for the
// guess. The result reads is false for a name that is not in CamelCase.
func readsByName(name string) (reads bool, why string) {
	first, object, ok := splitName(name)
	switch {
	case !ok:
		return false, "its name is not in CamelCase"
	case !slices.Contains(readingWords, first):
		return false, "its name begins with no word that reads"
	case misleadingNames[name] != "":
		return false, "its name says too little: " + misleadingNames[name]
	}
	for i, word := range object {
		switch last := i == len(object)-1; wordRoles[strings.ToLower(word)] {
		case linkingWord:
			return false, "its name holds " + word + ", which announces more than reading"
		case writingVerb:
			if last || chainingWords[strings.ToLower(first)] || !describingNouns[strings.ToLower(object[i+1])] {
				return false, "its name holds " + word + ", which writes or takes"
			}
		case issuedNoun:
			if last && first == "Get" {
				return false, "it may make the " + word + " that its name asks for"
			}
		case identifierNoun:
			if len(object) == 1 && first == "Get" {
				return false, "it may make the " + word + " that its name asks for"
			}
		case createdNoun:
			return false, "it may make, or take, the " + word + " that its name asks for"
		}
	}
	return true, "its name begins with " + first + " and holds no word that writes or takes"
}

// splitName splits a CamelCase name into its first word and all other words. BatchGet and AggregatedList are one word if they
// are at the start. ok is false if the name has a part that is not a word.
func splitName(name string) (first string, others []string, ok bool) {
	first, rest := nextWord(name)
	if first == "Batch" || first == "Aggregated" {
		var second string
		second, rest = nextWord(rest)
		first += second
	}
	for rest != "" {
		var word string
		if word, rest = nextWord(rest); word == "" {
			return "", nil, false
		}
		others = append(others, word)
	}
	return first, others, first != ""
}

// nextWord splits name after its first word, such as Item, HTTP, IDs or 2. A sequence of underscores also counts as a word.
// word is empty if name starts with another character, such as a lower-case letter.
func nextWord(name string) (word, rest string) {
	end := prefixLength(name, isUpper)
	capitals := strings.ToLower(name[:end])
	switch lower := prefixLength(name[end:], isLower); {
	case end == 0:
		end = max(prefixLength(name, isDigit), prefixLength(name, isUnderscore))
	case lower == 0: // HTTP
	case end == 1: // Item
		end += lower
	case wordRoles[capitals] == linkingWord || wordRoles[capitals] == writingVerb || wordRoles[capitals] == createdNoun: // ANDdelete is not AN and Ddelete, OTPSs is no plural
	case lower == 1 && name[end] == 's' && wordRoles[capitals[:end-1]] == 0: // IDs; OTPAs may be OTP and As
		end++
	case wordRoles[capitals] != 0: // OTPmail
	default: // HTTPServer: the last capital begins a word
		end--
	}
	return name[:end], name[end:]
}

// prefixLength returns the length of the longest prefix of s whose bytes are all in a class of characters. The function
// inClass reports whether a byte is in the class.
func prefixLength(s string, inClass func(byte) bool) int {
	for i := range len(s) {
		if !inClass(s[i]) {
			return i
		}
	}
	return len(s)
}

func isUpper(c byte) bool      { return 'A' <= c && c <= 'Z' }
func isLower(c byte) bool      { return 'a' <= c && c <= 'z' }
func isDigit(c byte) bool      { return '0' <= c && c <= '9' }
func isUnderscore(c byte) bool { return c == '_' }
