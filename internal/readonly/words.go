package readonly

import (
	"slices"
	"strings"
)

// readingWords are the words with which names of reading methods start, according to published conventions for API design. The
// doc comment of WithMethods and docs/http-grpc.md list the same words.
//
// Some words are missing on purpose: Check (CheckAndMutateRow, CheckIn and CheckOut write), Fetch (may import its object) and
// Show (may display its object to a user).
var readingWords = []string{
	"Get", "BatchGet", "List", "AggregatedList", "Search", "Lookup", "Query", "Read", "Count", "Describe", "Find", "Is", "Has", "Exists", "Estimate", "Stat",
}

// ReadingWords returns the words with which names of reading methods start, in the order in which documents list them. The
// caller may modify the slice.
func ReadingWords() []string { return slices.Clone(readingWords) }

// A wordRole says how a word in a method name affects the decision whether the method only reads. It applies to words after the
// reading word at the start of the name. Words without a role do not matter.
type wordRole uint8

const (
	_              wordRole = iota
	linkingWord             // joins another action to reading, such as And
	writingVerb             // verb that writes or takes; counts as a noun before a describing noun
	createdNoun             // noun for an object that a request may create or consume
	issuedNoun              // noun for an object that a Get method creates if its name ends with the noun: GetAccessToken, not GetTokenBalance
	identifierNoun          // noun for an object that a Get method creates if its name has no other word: GetId creates an ID, GetUserId reads one
)

// A wordClass is a list of words in method names that have the same role for the same reason.
type wordClass struct {
	role   wordRole // role of all words of the class
	reason string   // explanation for docs/design/methods.md, which lists all classes with a few words of each
	words  string   // words separated by spaces
}

// wordClasses are the words that prevent that a method is hedged because of its name. If a word is missing, a write may be sent
// twice. If there is a word too many, a method is not hedged, and a log line says how to allow that.
//
// Therefore words that are both verb and noun are included (Lock, Lease, Grant). Some of them are left out, because they nearly
// always name the object that is read: Order, Post, Book, Record, Log, Link, Report, Issue, Block, Tag, Index, Build, Run.
var wordClasses = []wordClass{
	{linkingWord, "They join a second action to the first, which can be anything: GetOrCreate, FindAndX, ReadThenX", `
		And Or Then Else Plus`},
	{linkingWord, "They make another verb of the first word: CountDown, ReadOut, GetIn", `
		In Out Up Down On Off Over Away Back`},
	{linkingWord, "They say that there is another one each time: GetNextTicket, GetNewAddress, GetUniqueID, ReadOnce", `
		Next New Once Unique Snowflake Fresh`},
	{writingVerb, "They create or add: GetSet, ListAppend, FindInsert", `
		Create Make Insert Add Append Prepend Concatenate Concat Put Push Write Save Persist Set Upsert Ensure Init Initialize Register Enroll
		Generate Allocate Provision Mint Airdrop Clone Copy Duplicate Import Upload Ingest Populate Backfill Replenish Compose Publish Deploy
		Install Upgrade Launch Open Begin Start Restart Reboot Resume Spawn Enqueue Requeue Submit Prepare Mount`},
	{writingVerb, "They change what is there: ReadModifyWriteRow, SearchReplace, GetEx (which sets an expiry)", `
		Update Modify Mutate Change Edit Alter Patch Replace Rewrite Overwrite Merge Split Splice Shuffle Move Rename Rotate Reorder Swap Exchange
		Toggle Flip Enable Disable Activate Deactivate Apply Commit Rollback Revert Undo Redo Reset Restore Recover Repair Refresh Reload
		Rebuild Recreate Reindex Reprocess Renew Extend Ex Expire Touch Mark Unmark Untag Pin Unpin Unstar Assign Unassign Attach Detach Bind Unbind
		Unlink Associate Disassociate Connect Disconnect Join Leave Follow Unfollow Subscribe Unsubscribe Sync Synchronize Reconcile Migrate
		Transform Configure Trim Retain Resize Promote Demote Freeze Unfreeze Suspend Pause Unset Undelete Internalize Externalize Seal Unseal`},
	{writingVerb, "They count, so that twice is one too many: GetIncr, CountVote", `
		Increment Incr Increase Decrement Decr Decrease Bump Advance Seek Skip Vote Upvote Downvote Accumulate`},
	{writingVerb, "They remove: GetDel, ListRemove, ReadClear", `
		Delete Del Remove Rem Drop Destroy Erase Wipe Burn Shred Clear Purge Flush Truncate Prune Evict Invalidate Discard Cleanup Clean Archive
		Unarchive Trash Revoke Uninstall Deregister Unregister Unmount Terminate Stop Halt Kill Abort Cancel Close Shutdown Finish Complete`},
	{writingVerb, "They take: the second call gets another one, or nothing. ListPop, QueryClaim", `
		Take Pick Obtain Collect Pop Poll Pull Shift Dequeue Consume Receive Drain Draw Claim Reserve Checkout Checkin Borrow Return Redeem Spend
		Lock Unlock Lease Acquire Release Free Hold Grab Steal Ack Nack Acknowledge Confirm`},
	{writingVerb, "They act elsewhere, or move money: QueryExec, SearchNotify, GetPay", `
		Send Resend Emit Notify Broadcast Forward Dispatch Deliver Invite Invoke Execute Exec Rerun Trigger Fire Do Perform
		Retry Replay Pay Charge Refund Transfer Withdraw Deposit Debit Credit Buy Sell Purchase Transact Settle Stake Unstake Undelegate`},
	{writingVerb, "They grant or decide: FindApprove, GetGrant", `
		Approve Reject Accept Decline Deny Grant Allow Forbid Ban Unban Unblock Mute Unmute Login Logout Signin Signup Authorize
		Authenticate Verify Elect`},
	{createdNoun, "Proofs of who somebody is, which are made, stored and often sent at each call", `
		Nonce Challenge Captcha Otp Totp Hotp Sms Code Password Passcode Passphrase Verification`},
	{createdNoun, "What is handed to one and to no other: the elements of a queue, the rights to something", `
		Work Element Suggestion Admission Voucher Coupon Prize Gift Loot Bonus`},
	{createdNoun, "What is computed, and then stored", `
		Thumbnail`},
	{createdNoun, "What can be any statement, writing ones included", `
		Sql Graphql Cypher Statement Flight Mutation`},
	{issuedNoun, "Rights that are handed out, where a Get ends with them: GetAccessToken, but not GetTokenBalance", `
		Token Credential`},
	{identifierNoun, "Identifiers, where a Get holds nothing else: GetId makes a new one, GetUserId reads one", `
		Id Uid Uuid Guid Ulid`},
}

// wordRoles maps words in lower case to their roles. The plural of a noun has the same role as the noun. A verb form such as
// Updates has no role.
var wordRoles = indexRoles(wordClasses)

// indexRoles returns the roles of all words in classes, by the word in lower case.
func indexRoles(classes []wordClass) map[string]wordRole {
	roles := make(map[string]wordRole)
	for _, c := range classes {
		words := wordSet(c.words)
		if c.role >= createdNoun {
			words = nounSet(c.words)
		}
		for w := range words {
			roles[w] = c.role
		}
	}
	return roles
}

// describingNounList are nouns that turn a verb before them into a noun: TransferStatus, TransferConfig and TransferJob are
// objects that can be read. Count is missing, because ReadClearCount clears.
const describingNounList = `Config Policy Status State Rule Setting Info Detail History Log Limit Metadata Template Schema Permission Progress Type Plan Job Request`

// describingNouns is the set of the words in describingNounList and their plurals.
var describingNouns = nounSet(describingNounList)

// chainingWords are the reading words after which a second verb may follow, as in ReadModifyWrite, SearchReplace and
// FindUpdate. After all other reading words, the object follows.
var chainingWords = wordSet(`Read Search Find`)

// misleadingNames maps names that start with a reading word, but belong to methods that write in widely used services, to the
// reason why.
var misleadingNames = map[string]string{
	"Query":              "a query can be any statement", // of Dgraph: mutations
	"Search":             "a search can be anything",
	"QueryResult":        "it can deliver a result", // of Cortex, Mimir and Loki
	"QueryResults":       "it can deliver results",
	"ReadResource":       "it can register the resource", // of Pulumi
	"GetContainerEvents": "it can take the events",       // of Kubernetes' CRI
}

// returningVerbs are the verbs with which names of methods start that give an object back to a service. Such an object may be a
// finished element of a queue, or the solution of a challenge.
var returningVerbs = wordSet(`Ack Nack Acknowledge Finish Complete Submit Push Answer Solve Redeem Confirm Verify Authenticate`)

// queuedNouns are nouns for elements of a queue, each of which is given to one reader only.
var queuedNouns = nounSet(`Work Job Task Item Message Event Element Assignment Command Callback Notification Update Change`)

// wordSet returns the set of the words in list, in lower case.
func wordSet(list string) map[string]bool {
	set := make(map[string]bool)
	for _, w := range strings.Fields(list) {
		set[strings.ToLower(w)] = true
	}
	return set
}

// nounSet returns the set of the words in list and their plurals, in lower case.
func nounSet(list string) map[string]bool {
	set := wordSet(list)
	for w := range wordSet(list) {
		switch stem, y := strings.CutSuffix(w, "y"); {
		case y:
			set[stem+"ies"] = true
		case strings.HasSuffix(w, "s"):
			set[w+"es"] = true
		default:
			set[w+"s"] = true
		}
	}
	return set
}
