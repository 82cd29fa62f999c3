package readonly

// ReadsByName is readsByName for its fuzz test.
var ReadsByName = readsByName

// WritingWords are the words that keep a method from being hedged by its name.
var WritingWords = writingWords
