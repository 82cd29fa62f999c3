package readonly

import (
	"slices"
	"strings"
)

// readingWords begin the names of methods that read, by the published conventions for
// API design. Check is not among them: CheckAndMutateRow, CheckIn and CheckOut write.
// The doc comment of WithMethods and docs/protocols.md list them.
var readingWords = []string{"Get", "BatchGet", "List", "Search", "Lookup", "Query", "Read", "Count", "Describe", "Find"}

// Words returns the words of which one begins the name of a method that reads, in the order in
// which documents list them. The caller may change the slice.
func Words() []string { return slices.Clone(readingWords) }

// writingWords are the words that a method's name must not hold if it is to be
// hedged by its name. A word that is missing here can run somebody's write twice; one
// too many costs a hedge, and a line in the log says how to allow it. So what is a verb
// and a noun is here (Lock, Lease, Grant), but for what is nearly always the thing that
// is read: Order, Post, Book, Record, Log, Link, Report, Issue, Block, Tag, Index, Build, Run.
var writingWords = wordSet(
	// They join a second action to the first, which can be anything: GetOrCreate, FindAndX, ReadThenX.
	`And Or Then Else Plus`,
	// They make another verb of the first word: CountDown, ReadOut, GetIn.
	`In Out Up Down On Off Over Away Back`,
	// They create or add: GetSet, ListAppend, FindInsert, GetNewAddress.
	`Create New Make Insert Add Append Prepend Put Push Write Save Set Upsert Init Initialize Register Enroll
	Generate Allocate Provision Mint Clone Duplicate Import Upload Ingest Populate Compose Publish Deploy Install
	Upgrade Launch Open Begin Start Restart Resume Spawn Enqueue Requeue Submit`,
	// They change what is there: ReadModifyWriteRow, SearchReplace, GetEx (which sets an expiry).
	`Update Modify Mutate Change Edit Alter Patch Replace Rewrite Overwrite Merge Move Rename Rotate Reorder Swap Exchange Toggle Flip
	Enable Disable Activate Deactivate Apply Commit Rollback Revert Undo Redo Reset Restore Recover Repair Refresh Reload
	Renew Extend Ex Expire Touch Mark Unmark Untag Pin Unpin Unstar Assign Unassign Attach Detach Bind Unbind Unlink
	Associate Disassociate Connect Disconnect Join Leave Follow Unfollow Subscribe Unsubscribe Sync Synchronize Reconcile Migrate
	Transform Configure Trim Resize Promote Demote Freeze Unfreeze Suspend Pause Unset Undelete`,
	// They count, so that twice is one too many: GetIncr, CountVote.
	`Increment Incr Increase Decrement Decr Decrease Bump Advance Seek Skip Vote Upvote Downvote Accumulate`,
	// They remove: GetDel, ListRemove, ReadClear.
	`Delete Del Remove Rem Drop Destroy Erase Wipe Burn Shred Clear Purge Flush Truncate Prune Evict Invalidate Discard Cleanup Clean
	Archive Unarchive Trash Revoke Uninstall Deregister Unregister Terminate Stop Kill Abort Cancel Close Shutdown Finish Complete`,
	// They take: the second call gets another one, or nothing. GetNextTicket, ListPop, QueryClaim, ReadOnce.
	`Next Once Take Pop Poll Pull Shift Dequeue Consume Receive Drain Draw Claim Reserve Checkout Checkin Borrow Return Redeem Spend
	Lock Unlock Lease Acquire Release Hold Grab Steal Ack Nack Acknowledge Confirm`,
	// They act elsewhere, or move money: QueryExec, SearchNotify, GetPay.
	`Send Resend Emit Notify Broadcast Forward Dispatch Deliver Invite Invoke Execute Exec Rerun Trigger Fire Do Perform
	Retry Replay Pay Charge Refund Transfer Withdraw Deposit Debit Credit Buy Sell Purchase Transact Settle`,
	// They grant or decide: FindApprove, GetGrant.
	`Approve Reject Accept Decline Deny Grant Allow Forbid Ban Unban Unblock Mute Unmute Login Logout Signin Signup Authorize
	Authenticate Elect`,
)

func wordSet(lists ...string) map[string]bool {
	set := make(map[string]bool)
	for _, list := range lists {
		for _, w := range strings.Fields(list) {
			set[strings.ToLower(w)] = true
		}
	}
	return set
}

// readsByName reports whether the name of a method promises to only read. A name that
// is not in CamelCase promises nothing.
func readsByName(name string) bool {
	first, rest := nextWord(name)
	if first == "Batch" {
		var second string
		second, rest = nextWord(rest)
		first += second
	}
	if !slices.Contains(readingWords, first) {
		return false
	}
	for rest != "" {
		if writingWords[strings.ToLower(rest[:span(rest, isUpper)])] {
			return false // ANDdelete, whose words by the rules are AN and Ddelete
		}
		var word string
		if word, rest = nextWord(rest); word == "" || writingWords[strings.ToLower(word)] {
			return false
		}
	}
	return true
}

// nextWord splits off the first word of a CamelCase name: Item, HTTP or 2. An underscore
// is a word as well. The word is empty if what is there is nothing of these.
func nextWord(name string) (word, rest string) {
	end := span(name, isUpper)
	switch lower := span(name[end:], isLower); {
	case end == 0:
		end = max(span(name, isDigit), span(name, isUnderscore))
	case lower == 0: // HTTP
	case end == 1: // Item
		end += lower
	default: // HTTPServer: the last capital begins a word
		end--
	}
	return name[:end], name[end:]
}

// span returns how many bytes at the start of s are in a class.
func span(s string, class func(byte) bool) int {
	for i := range len(s) {
		if !class(s[i]) {
			return i
		}
	}
	return len(s)
}

func isUpper(c byte) bool      { return 'A' <= c && c <= 'Z' }
func isLower(c byte) bool      { return 'a' <= c && c <= 'z' }
func isDigit(c byte) bool      { return '0' <= c && c <= '9' }
func isUnderscore(c byte) bool { return c == '_' }
