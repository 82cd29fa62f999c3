package serviceconfig

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gohedge/hedge"
	"github.com/gohedge/hedge/internal/netsim"
)

var record = flag.Bool("record", false, "have grpc-java play the scripts, with a JDK and Maven, and record what it does")

const recorded = "testdata/grpc-java.json"

// tolerance is how much the times of grpc-java, which are real, may differ from ours, which are exact.
const tolerance = 20.0 // ms

// A recording is what another implementation did.
type recording struct {
	Version string         `json:"version"`
	Scripts []scriptResult `json:"scripts"`
}

type scriptResult struct {
	Name  string   `json:"name"`
	Calls []result `json:"calls"`
}

// A result is how a call went.
type result struct {
	Attempts []attempt  `json:"attempts"` // as the server saw them
	Took     float64    `json:"took"`     // ms
	Code     codes.Code `json:"-"`
	Status   string     `json:"status"`
	Text     string     `json:"text"` // "attempt 1" or "answer 1", if it is the server's
}

type attempt struct {
	At       float64 `json:"at"`       // ms since the first
	Previous string  `json:"previous"` // grpc-previous-rpc-attempts
}

// server plays scripts. It is safe for concurrent use.
type server struct {
	mu   sync.Mutex
	seen map[string]*seen // by "run/script/call"
}

type seen struct {
	first    time.Time
	attempts []attempt
}

func newServer() (*server, *grpc.Server) {
	s := &server{seen: make(map[string]*seen)}
	return s, grpc.NewServer(grpc.UnknownServiceHandler(s.handle))
}

// handle plays an attempt.
func (s *server) handle(_ any, stream grpc.ServerStream) error {
	if err := stream.RecvMsg(new(emptypb.Empty)); err != nil {
		return err
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	id := strings.Join(md["call"], "")
	if id == "" {
		return stream.SendMsg(new(emptypb.Empty))
	}
	var run, number, c int
	if _, err := fmt.Sscanf(id, "%d/%d/%d", &run, &number, &c); err != nil {
		return err
	}
	s.mu.Lock()
	at := s.seen[id]
	if at == nil {
		at = &seen{first: time.Now()}
		s.seen[id] = at
	}
	n := len(at.attempts)
	at.attempts = append(at.attempts, attempt{milliseconds(time.Since(at.first)), strings.Join(md["grpc-previous-rpc-attempts"], ",")})
	s.mu.Unlock()

	all := scripts[number].Calls[c].plays
	p := all[min(n, len(all)-1)]
	select {
	case <-time.After(time.Duration(p.ms) * time.Millisecond):
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
	if p.pushback != "" {
		stream.SetTrailer(metadata.Pairs("grpc-retry-pushback-ms", p.pushback))
	}
	if p.code != codes.OK {
		return status.Errorf(p.code, "attempt %d", n)
	}
	return stream.SendMsg(wrapperspb.String(fmt.Sprint("answer ", n)))
}

func milliseconds(d time.Duration) float64 { return float64(d.Round(100*time.Microsecond)) / 1e6 }

func (s *server) attempts(id string) []attempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.seen[id]; at != nil {
		return at.attempts
	}
	return nil
}

// settle fills in what follows from the others.
func (r *result) settle() {
	r.Status = r.Code.String()
	if !regexp.MustCompile(`^(attempt|answer) \d$`).MatchString(r.Text) {
		r.Text = ""
	}
}

// TestRecord has grpc-java play the scripts, if -record is given.
func TestRecord(t *testing.T) {
	if !*record {
		t.Skip("-record is not given; what was recorded is compared by TestStrictIsAsGRPCJava")
	}
	s, serve := newServer()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = serve.Serve(l) }()
	defer serve.Stop()
	file := filepath.Join(t.TempDir(), "scripts.json")
	text, err := json.Marshal(scripts)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, text, 0o600))

	run := func(name string, args ...string) string {
		var complaint bytes.Buffer
		cmd := exec.Command(name, args...)
		cmd.Stderr = &complaint
		out, err := cmd.Output()
		require.NoError(t, err, "%s\n%s", &complaint, out)
		return string(out)
	}
	target, classes := t.TempDir(), filepath.Join(t.TempDir(), "classpath")
	run("mvn", "-B", "-q", "compile", "dependency:build-classpath", "-DbuildDirectory="+target, "-Dmdep.outputFile="+classes)
	defer func() { require.NoError(t, os.RemoveAll("target")) }()
	jars, err := os.ReadFile(classes)
	require.NoError(t, err)
	out := run("java", "-cp", "target/classes:"+string(jars), "Play", l.Addr().String(), file)

	var got [][][]struct { // by run, script and call
		Took float64
		Code codes.Code
		Text string
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Greater(t, len(got), 1)
	version := regexp.MustCompile(`grpc-core-([\d.]+)\.jar`).FindStringSubmatch(string(jars))
	require.Len(t, version, 2)
	all := recording{Version: "grpc-java " + version[1]}
	for i := range scripts {
		one := scriptResult{Name: scripts[i].Name}
		for j := range scripts[i].Calls {
			best := 1 // the first run is slow; what else a machine does makes others slower as well
			for run := range got[1:] {
				if got[1+run][i][j].Took < got[best][i][j].Took {
					best = 1 + run
				}
			}
			c := got[best][i][j]
			r := result{Attempts: s.attempts(fmt.Sprintf("%d/%d/%d", best, i, j)), Took: float64(int(10*c.Took)) / 10, Code: c.Code, Text: c.Text}
			r.settle()
			one.Calls = append(one.Calls, r)
		}
		all.Scripts = append(all.Scripts, one)
	}
	text, err = json.MarshalIndent(all, "", "\t")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(recorded, append(text, '\n'), 0o644))
}

// play plays a script in strict mode.
func playStrict(t *testing.T, number int) (results []result) {
	network, err := netsim.NewMemory(1, "client", "server")
	require.NoError(t, err)
	l, err := network.Host("server").Listen("tcp", ":443")
	require.NoError(t, err)
	s, serve := newServer()
	go func() { _ = serve.Serve(l) }()
	opts, err := hedge.DialOptions(string(scripts[number].Config), hedge.StrictServiceConfig())
	require.NoError(t, err)
	cc, err := grpc.NewClient("passthrough:///server:443", append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return network.Host("client").DialContext(ctx, "tcp", addr)
		}))...)
	require.NoError(t, err)
	defer func() {
		require.NoError(t, cc.Close())
		serve.Stop()
		synctest.Wait()
		require.NoError(t, network.Close())
	}()
	cc.Connect()
	for state := cc.GetState(); state != connectivity.Ready; state = cc.GetState() {
		cc.WaitForStateChange(t.Context(), state)
	}
	for j, c := range scripts[number].Calls {
		id := fmt.Sprintf("0/%d/%d", number, j)
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "call", id), time.Duration(c.Timeout)*time.Millisecond)
		start, reply := time.Now(), new(wrapperspb.StringValue)
		err := invoke(ctx, cc, c, reply)
		r := result{Took: milliseconds(time.Since(start)), Code: status.Code(err), Text: reply.Value}
		if err != nil {
			r.Text = status.Convert(err).Message()
		}
		cancel()
		synctest.Wait()
		r.Attempts = s.attempts(id)
		r.settle()
		results = append(results, r)
	}
	return results
}

// invoke makes a call, and reads a stream to its end.
func invoke(ctx context.Context, cc *grpc.ClientConn, c call, reply *wrapperspb.StringValue) error {
	if !c.Stream {
		return cc.Invoke(ctx, c.Method, new(emptypb.Empty), reply)
	}
	stream, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, c.Method)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(new(emptypb.Empty)); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if err := stream.RecvMsg(reply); err != nil {
		return err
	}
	if err := stream.RecvMsg(new(wrapperspb.StringValue)); err != io.EOF {
		return err
	}
	return nil
}

// TestStrictIsAsGRPCJava compares what strict mode does with what grpc-java did. Where they differ, a line of differences says why.
func TestStrictIsAsGRPCJava(t *testing.T) {
	text, err := os.ReadFile(recorded)
	require.NoError(t, err)
	var want recording
	require.NoError(t, json.Unmarshal(text, &want))
	require.Len(t, want.Scripts, len(scripts))
	require.GreaterOrEqual(t, len(scripts), 30)
	assert.LessOrEqual(t, len(differences), 2)
	differs := make(map[string]string)
	for reason, names := range differences {
		for _, name := range names {
			differs[name] = reason
		}
	}
	for i, s := range scripts {
		t.Run(s.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				require.Equal(t, s.Name, want.Scripts[i].Name)
				got, java := playStrict(t, i), want.Scripts[i].Calls
				require.Len(t, java, len(got))
				var found []string
				for j := range got {
					found = append(found, compare(got[j], java[j])...)
				}
				if reason := differs[s.Name]; reason != "" {
					assert.NotEmpty(t, found, "it does not differ any more: %s", reason)
					t.Logf("differs: %s: %s", reason, strings.Join(found, "; "))
					delete(differs, s.Name)
					return
				}
				assert.Empty(t, found)
			})
		})
	}
	assert.Empty(t, differs, "there are no such scripts")
}

// compare says what is different about a call of ours and one of grpc-java.
func compare(ours, java result) (found []string) {
	differ := func(what string, a, b any) { found = append(found, fmt.Sprintf("%s %v, grpc-java %v", what, a, b)) }
	if len(ours.Attempts) != len(java.Attempts) {
		differ("attempts", ours.Attempts, java.Attempts)
	}
	for n := range min(len(ours.Attempts), len(java.Attempts)) {
		a, b := ours.Attempts[n], java.Attempts[n]
		if a.At-b.At > tolerance || b.At-a.At > tolerance {
			differ(fmt.Sprintf("attempt %d at", n), a.At, b.At)
		}
		if !together(ours) && a.Previous != b.Previous { // those of one moment arrive in any order
			differ(fmt.Sprintf("attempt %d after", n), a.Previous, b.Previous)
		}
	}
	if ours.Took-java.Took > tolerance || java.Took-ours.Took > tolerance {
		differ("took", ours.Took, java.Took)
	}
	if ours.Status != java.Status {
		differ("status", ours.Status, java.Status)
	}
	if ours.Text != java.Text && !strings.HasPrefix(ours.Text+java.Text, "answer") {
		differ("text", ours.Text, java.Text)
	}
	return found
}

// differences are the reasons why scripts end otherwise than with grpc-java, and their names.
var differences = map[string][]string{
	"A6: a non-fatal status has the next hedge sent immediately; grpc-java waits for its delay": {
		"a non-fatal failure of the first", "a non-fatal failure of a hedge", "all fail",
	},
	"A6: after a push-back the next hedge is sent when that has passed; grpc-java sends it immediately": {
		"push-back for a while", "push-back of a hedge",
	},
}

// together reports whether all attempts of a call are sent at once.
func together(r result) bool { return len(r.Attempts) > 1 && r.Attempts[1].At == 0 }
