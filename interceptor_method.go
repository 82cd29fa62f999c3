package hedge

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// WithMethods declares gRPC methods safe to send twice at the same time:
// "/pkg.Service/Method", "/pkg.Service/*" for all of a service, or "/*" for all. It
// may be given several times. It panics if a pattern is of none of these forms.
//
// A method that is not listed is hedged if its descriptor, where the program has it
// registered, says NO_SIDE_EFFECTS or binds it to HTTP GET (google.api.http). If the
// descriptor says IDEMPOTENT or binds it to other HTTP methods only, it is sent once:
// of two idempotent writes, the late one can undo what a third has written between them.
//
// Where nothing is declared, the name decides. Its first word must be Get, BatchGet,
// List, Search, Lookup, Query, Read, Count, Describe or Find, and no other word may
// write or take: GetOrCreateUser, ReadModifyWriteRow and GetNextTicket are sent once.
// The source of this package lists those words.
func WithMethods(patterns ...string) Option {
	for _, p := range patterns {
		if !methodPattern(p) {
			panic(fmt.Sprintf("hedge: WithMethods: %q is not /pkg.Service/Method, /pkg.Service/* or /*", p))
		}
	}
	patterns = slices.Clone(patterns)
	return optionFunc(func(c *config) { c.grpc.methods = append(c.grpc.methods, patterns...) })
}

// methodRule is what holds for every call of a method.
type methodRule struct {
	hedgeable bool
	policy    Policy
}

// The names of methods can come from strangers: a proxy passes on what it is sent.
const (
	maxRules      = 4096 // methods whose rules are kept
	maxMethodName = 256  // bytes; a longer name's rule is found again for each call
)

// rule returns what holds for a method: its route's policy, and whether it is known
// to be safe to send twice. It is found once per method, unless there are more than
// maxRules.
func (in *Interceptor) rule(name string) *methodRule {
	if v, ok := in.rules.Load(name); ok {
		return v.(*methodRule)
	}
	m := new(methodRule)
	if r := in.options.routes; r != nil {
		if to := r.grpc(name); to != nil {
			m.policy = to.Policy
		}
	}
	m.hedgeable = !m.policy.Off && (m.policy.Hedgeable || in.listed(name) || reads(name))
	if len(name) > maxMethodName {
		return m
	}
	v, known := in.rules.LoadOrStore(strings.Clone(name), m)
	if known {
		return v.(*methodRule)
	}
	n := in.methods.Add(1)
	if n%maxRules == 0 {
		in.rules.Clear() // what is in use comes back
	}
	if n <= maxRules && !m.hedgeable && !m.policy.Off && !in.log.Silent() {
		in.log.Tell(slog.LevelInfo, "method is not hedged: nothing says that it is safe to repeat",
			slog.String("method", name), slog.String("allow", fmt.Sprintf("hedge.WithMethods(%q)", name)))
	}
	return m
}

func (in *Interceptor) listed(method string) bool {
	for _, p := range in.options.grpc.methods {
		prefix, all := strings.CutSuffix(p, "*")
		if p == method || (all && strings.HasPrefix(method, prefix)) {
			return true
		}
	}
	return false
}

// reads reports whether a full method name is that of a method that only reads, by
// its declaration or else by its name.
func reads(method string) bool {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	if d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service + "." + name)); err == nil {
		if m, ok := d.(protoreflect.MethodDescriptor); ok {
			if o, ok := m.Options().(*descriptorpb.MethodOptions); ok {
				if readOnly, declared := declaration(o); declared {
					return readOnly
				}
			}
		}
	}
	return readsByName(name)
}

// declaration reports whether options say what a method does, and if so, whether it only reads.
func declaration(o *descriptorpb.MethodOptions) (readOnly, declared bool) {
	if level := o.GetIdempotencyLevel(); level != descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN {
		return level == descriptorpb.MethodOptions_NO_SIDE_EFFECTS, true
	}
	// The extension google.api.http is a field of its own type if the program has that
	// linked in, and an unknown field otherwise. On the wire it is the same.
	wire, err := proto.Marshal(o)
	if err != nil {
		return false, true
	}
	var http []byte
	eachField(wire, func(n protowire.Number, v []byte) {
		if n == httpExtension {
			http = append(http, v...) // messages merge by concatenation
		}
	})
	return httpBinding(http)
}

// Field numbers of google/api/http.proto and google/api/annotations.proto.
const (
	httpExtension      = 72295728 // of MethodOptions, a HttpRule
	httpGet            = 2        // of HttpRule, as all below
	httpPut            = 3
	httpPost           = 4
	httpDelete         = 5
	httpPatch          = 6
	httpCustom         = 8
	additionalBindings = 11
)

// httpBinding reports whether a HttpRule binds a method to HTTP, and if so, whether
// one of its bindings is GET. Then anybody may repeat the call (RFC 9110, 9.2.1), also
// if the same method can be called by POST, as long queries are.
func httpBinding(rule []byte) (get, bound bool) {
	eachField(rule, func(n protowire.Number, v []byte) {
		switch n {
		case httpGet:
			get, bound = true, true
		case httpPut, httpPost, httpDelete, httpPatch, httpCustom:
			bound = true
		case additionalBindings:
			g, b := httpBinding(v)
			get, bound = get || g, bound || b
		}
	})
	return get, bound
}

// eachField calls f with the number and the value of each field of a message that is
// a string or a message. It stops where the message is malformed.
func eachField(message []byte, f func(protowire.Number, []byte)) {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return
		}
		message = message[size:]
		if kind == protowire.BytesType {
			v, size := protowire.ConsumeBytes(message)
			if size < 0 {
				return
			}
			f(n, v)
		}
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			return
		}
		message = message[size:]
	}
}

// readingWords begin the names of methods that read, by the published conventions for
// API design. Check is not among them: CheckAndMutateRow, CheckIn and CheckOut write.
var readingWords = map[string]bool{
	"Get": true, "List": true, "Search": true, "Lookup": true, "Query": true, "Read": true, "Count": true, "Describe": true, "Find": true,
}

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
		if first, rest = nextWord(rest); first != "Get" {
			return false
		}
	}
	if !readingWords[first] {
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
