package readonly_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gohedge/hedge/internal/readonly"
)

func TestReadsByNameAcceptsEveryReadingWord(t *testing.T) {
	words := readonly.ReadingWords()
	for _, w := range words {
		for name, want := range map[string]bool{w + "Items": true, w + "ItemAndDelete": false, w + "ing": false, "Un" + w: false} {
			assert.Equal(t, want, readonly.ReadsByName(name), name)
		}
		assert.Equal(t, w != "Query" && w != "Search", readonly.ReadsByName(w), "%s alone", w)
	}
	assert.Contains(t, words, "BatchGet")
	assert.NotContains(t, words, "Batch")
	assert.NotContains(t, words, "Aggregated")
}

func TestReadsByName(t *testing.T) {
	for names, want := range map[string]bool{
		// A verb before a describing noun counts as a noun.
		`GetTransferConfig ListTransferConfigs GetRestorePlan GetSendStatus GetInstallStatus ListImportJobs QueryWriteStatus ListDeployPolicies
		DescribeLockState GetUploadMetadata GetDeleteRequests ListTransferHistories`: true,
		// Other words before a describing noun do not, and neither does a verb after a chaining word.
		`GetNextJob GetNewConfig GetOrConfig GetOnceStatus ReadClearStatus SearchReplaceTemplate FindUpdateJob
		GetClearCount GetSetConfigAndApply GetUpdateConfigReset ReadModifyWriteState GetUpdate GetUpdatePlane`: false,
		// Objects that a request creates, issues or takes.
		`GetNonce GetNonces GetLoginNonce GetChallenge GetCaptcha GetCaptchaImage GetVerifyCode GetSMSCode GetOTP GetTOTPSecret GetPassword GetWork
		GetWorkItems GetElement GetSuggestions ListAdmissions GetId GetIDs GetUID GetUuid GetUUIDs GetUniqueID GetToken GetIDToken GetAccessToken
		GetUserAccessToken GetCredentials GetFlightInfo QuerySQL QueryCypher`: false,
		`GetWorkflow GetTokenBalance ListTokens GetUserID ListIds GetItemIDs BatchGetByUUID GetElementary GetPasswordless ListCredentials`: true,
		`Query Search QueryResult QueryResults ReadResource GetContainerEvents`:                                                            false,
		`QueryRange SearchItems GetQueryResult ReadResources ListContainerEvents`:                                                          true,
		`IsMember HasAccess Exists EstimateGas StatFile AggregatedListDisks AggregatedList`:                                                true,
		`Isolate Hash Existential IsAndSet HasNext Aggregated AggregatedGet Show ShowMessage Fetch FetchItem Check`:                        false,
	} {
		for _, name := range strings.Fields(names) {
			assert.Equal(t, want, readonly.ReadsByName(name), name)
		}
	}
}

func TestSplitName(t *testing.T) {
	for name, want := range map[string]string{
		"GetItem": "Get Item", "BatchGetHTTPServer2": "BatchGet HTTP Server 2", "AggregatedListX": "AggregatedList X", "GetUserIDs": "Get User IDs",
		"GetIDsOfUsers": "Get IDs Of Users", "GetANDdelete": "", "Get_Item": "Get _ Item", "Getитем": "", "getItem": "", "": "", "Batch": "Batch",
	} {
		first, others, ok := readonly.SplitName(name)
		require.Equal(t, want != "", ok, name)
		if ok {
			assert.Equal(t, want, strings.Join(append([]string{first}, others...), " "))
		}
	}
}

// TestReadsByNameRejectsWordsOfEveryClass combines every listed word with every reading word, at every position among neutral words.
func TestReadsByNameRejectsWordsOfEveryClass(t *testing.T) {
	forbidden := readonly.ForbiddenWords()
	require.Greater(t, len(forbidden), 300)
	for _, reading := range readonly.ReadingWords() {
		for _, w := range forbidden {
			camel := strings.ToUpper(w[:1]) + w[1:]
			for _, name := range []string{camel, "Item" + camel, camel + "Item", "Item" + camel + "2", "HTTP" + camel, "_" + camel, strings.ToUpper(w), strings.ToUpper(w) + "_x"} {
				assert.False(t, readonly.ReadsByName(reading+name), reading+name)
			}
		}
	}
}

// FuzzReadsByName checks that no name with a listed word is classified as reading, whatever other words it has.
func FuzzReadsByName(f *testing.F) {
	words := readonly.ForbiddenWords()
	slices.Sort(words)
	f.Add("Get", "", uint16(0), uint8(0))
	f.Add("BatchGetURL", "Items2", uint16(7), uint8(1))
	f.Add("List_", "_x", uint16(99), uint8(2))
	f.Add("GetHTTP", "delete", uint16(3), uint8(1))
	f.Add("Get", "Config", uint16(50), uint8(0))
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
		if _, rest, ok := readonly.SplitName("Get" + after); ok && len(rest) > 0 && readonly.IsDescribingNoun(rest[0]) {
			t.Skip() // Transfer in GetTransferConfig is a noun
		}
		assert.False(t, readonly.ReadsByName(before+w+after), "%q", before+w+after)
	})
}

func first(s string) byte { return (s + "\x00")[0] }
func last(s string) byte  { return ("\x00" + s)[len(s)] }
