package main

const (
	hedgePath        = "github.com/gohedge/hedge"
	grpcPath         = "google.golang.org/grpc"
	hedgedhttpPath   = "github.com/cristalhq/hedgedhttp"
	failsafePath     = "github.com/failsafe-go/failsafe-go"
	baselineHTTP     = "`net/http` alone"
	baselineGRPC     = "grpc-go alone"
	baselineResolver = "`net.Resolver` alone"
)

// A program is a small Go program whose size is compared with that of a program without the library that it uses.
type program struct {
	title    string
	tags     string // of the build
	baseline string // title of the program with which it is compared; empty: none
	limit    footprintLimit
	source   string
}

var programs = []program{{
	title: baselineHTTP, source: httpProgramSource("http.DefaultTransport"),
}, {
	title: "with `hedge.New`", baseline: baselineHTTP,
	limit:  footprintLimit{linked: 9, listed: 16},
	source: httpProgramSource("hedge.New(http.DefaultTransport)", hedgePath),
}, {
	title: "with `hedge.New` and `-tags hedge_nogrpc`", baseline: baselineHTTP, tags: "hedge_nogrpc",
	limit:  footprintLimit{bytes: 3_100_000, linked: 5, listed: 16},
	source: httpProgramSource("hedge.New(http.DefaultTransport)", hedgePath),
}, {
	title: "with failsafe-go", baseline: baselineHTTP,
	source: httpProgramSource("failsafehttp.NewRoundTripper(nil, hedgepolicy.NewWithDelay[*http.Response](time.Second))",
		"time", failsafePath+"/failsafehttp", failsafePath+"/hedgepolicy"),
}, {
	title: "with hedgedhttp", baseline: baselineHTTP,
	source: httpProgramSource("hedged()", "time", hedgedhttpPath) + `
func hedged() http.RoundTripper {
	rt, err := hedgedhttp.NewRoundTripper(time.Second, 2, nil)
	if err != nil {
		panic(err)
	}
	return rt
}
`,
}, {
	title: baselineGRPC, source: grpcProgram(""),
}, {
	title: "with `hedge.NewInterceptor`", baseline: baselineGRPC,
	source: grpcProgram("grpc.WithChainUnaryInterceptor(hedge.NewInterceptor().Unary())", hedgePath),
}, {
	title: baselineResolver, source: dnsProgram("net.DefaultResolver"),
}, {
	title: "with `dnshedge.Client`", baseline: baselineResolver,
	source: dnsProgram("new(dnshedge.Client).Resolver()", hedgePath+"/dnshedge"),
}}

// httpProgramSource returns the Go source of a program that gets a web page, whose size is measured. transport is a Go
// expression for the HTTP transport. imports are the packages that the code for the transport needs.
func httpProgramSource(transport string, imports ...string) string {
	return formatProgramStart(append(imports, "fmt", "net/http")) + `
	client := &http.Client{Transport: ` + transport + `}
	resp, err := client.Get("http://localhost/")
	if err == nil {
		err = resp.Body.Close()
	}
	fmt.Println(err)
}
`
}

// grpcProgram returns the Go source of a program that makes a gRPC call. option, a dial option or empty, needs imports.
func grpcProgram(option string, imports ...string) string {
	imports = append(imports, "context", "fmt", grpcPath, grpcPath+"/credentials/insecure", "google.golang.org/protobuf/types/known/emptypb")
	return formatProgramStart(imports) + `
	conn, err := grpc.NewClient("localhost:1", grpc.WithTransportCredentials(insecure.NewCredentials()), ` + option + `)
	if err == nil {
		err = conn.Invoke(context.Background(), "/shop.Shop/GetItem", new(emptypb.Empty), new(emptypb.Empty))
	}
	fmt.Println(err)
}
`
}

// dnsProgram returns the Go source of a program that looks up a host name. resolver, an expression, needs imports.
func dnsProgram(resolver string, imports ...string) string {
	return formatProgramStart(append(imports, "context", "fmt", "net")) + `
	var resolver *net.Resolver = ` + resolver + `
	fmt.Println(resolver.LookupHost(context.Background(), "localhost"))
}
`
}

// formatProgramStart returns the beginning of the Go source of a measured program, up to the first statement of main.
func formatProgramStart(imports []string) string {
	text := "package main\n\n"
	for _, path := range imports {
		text += "import \"" + path + "\"\n"
	}
	return text + "\nfunc main() {"
}
