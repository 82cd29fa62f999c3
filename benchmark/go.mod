module github.com/gohedge/hedge/benchmark

go 1.25.0

replace github.com/gohedge/hedge => ..

require (
	github.com/DataDog/sketches-go v1.4.5
	github.com/cristalhq/hedgedhttp v0.9.1
	github.com/failsafe-go/failsafe-go v0.9.8
	github.com/gohedge/hedge v0.0.0-00010101000000-000000000000
	github.com/miekg/dns v1.1.73
	github.com/stretchr/testify v1.11.1
	golang.org/x/net v0.58.0
	golang.org/x/term v0.45.0
	google.golang.org/grpc v1.83.2
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/bits-and-blooms/bitset v1.24.4 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/influxdata/tdigest v0.0.1 // indirect
	github.com/kr/text v0.2.0 // indirect
	github.com/maypok86/otter/v2 v2.2.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	golang.org/x/time v0.5.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260526163538-3dc84a4a5aaa // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
