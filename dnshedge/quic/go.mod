module github.com/gohedge/hedge/dnshedge/quic

go 1.25.0

// For work in this repository. It stays in releases: replace has no effect in dependencies.
replace github.com/gohedge/hedge => ../..

require (
	github.com/gohedge/hedge v0.0.0-00010101000000-000000000000
	github.com/miekg/dns v1.1.73
	github.com/quic-go/quic-go v0.61.0
	github.com/stretchr/testify v1.11.1
)

require (
	github.com/DataDog/sketches-go v1.4.5 // indirect
	github.com/davecgh/go-spew v1.1.1 // indirect
	github.com/kr/text v0.2.0 // indirect
	github.com/maypok86/otter/v2 v2.2.1 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	github.com/quic-go/qpack v0.6.0 // indirect
	golang.org/x/crypto v0.55.0 // indirect
	golang.org/x/net v0.58.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	golang.org/x/time v0.5.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	gopkg.in/yaml.v3 v3.0.1 // indirect
)
