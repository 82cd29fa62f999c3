module github.com/gohedge/hedge

go 1.26.0

require (
	github.com/DataDog/sketches-go v1.4.8
	github.com/stretchr/testify v1.12.1
)

require (
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/time v0.16.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
