package readonly_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/gohedge/hedge/internal/readonly"
)

// service builds a service from lines such as "GetTask(worker_id) stream Task". A request has the fields in parentheses. A reply has one
// field, except for Nothing. NO_SIDE_EFFECTS at the end of a line declares that option.
func service(t *testing.T, name string, methods ...string) protoreflect.ServiceDescriptor {
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String("test.proto"), Package: proto.String("test"), Syntax: proto.String("proto3"),
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: &name}},
	}
	messages := make(map[string]bool)
	message := func(name string, fields ...string) *string {
		if !messages[name] {
			messages[name] = true
			m := &descriptorpb.DescriptorProto{Name: &name}
			for i, f := range fields {
				m.Field = append(m.Field, &descriptorpb.FieldDescriptorProto{
					Name: &f, Number: proto.Int32(int32(i) + 1),
					Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
				})
			}
			file.MessageType = append(file.MessageType, m)
		}
		return proto.String(".test." + name)
	}
	for _, line := range methods {
		call, reply, _ := strings.Cut(line, ") ")
		name, fields, _ := strings.Cut(call, "(")
		m := &descriptorpb.MethodDescriptorProto{Name: &name, Options: &descriptorpb.MethodOptions{}}
		fields, fromClient := strings.CutPrefix(fields, "stream ")
		reply, fromServer := strings.CutPrefix(reply, "stream ")
		reply, declared := strings.CutSuffix(reply, " NO_SIDE_EFFECTS")
		m.ClientStreaming, m.ServerStreaming = &fromClient, &fromServer
		if declared {
			m.Options.IdempotencyLevel = descriptorpb.MethodOptions_NO_SIDE_EFFECTS.Enum()
		}
		m.InputType = message(name+"Request", strings.Fields(fields)...)
		if reply == "Nothing" {
			m.OutputType = message(reply)
		} else {
			m.OutputType = message(reply, "value")
		}
		file.Service[0].Method = append(file.Service[0].Method, m)
	}
	d, err := protodesc.NewFile(file, new(protoregistry.Files))
	require.NoError(t, err)
	return d.Services().Get(0)
}

// TestClassifyMethodByDescriptor classifies the first method of each service.
func TestClassifyMethodByDescriptor(t *testing.T) {
	for _, c := range []struct {
		service string
		methods string // separated by commas
		why     string // a part of it; empty: the method reads
	}{
		{"Shop", "GetItem() Item", ""},
		{"Shop", "GetItem() Operation", "Operation"},
		{"Shop", "ListItems() stream Operation", "Operation"},
		{"Shop", "GetItem() Operation NO_SIDE_EFFECTS", ""},
		{"Shop", "GetOperation() Operation", ""},
		{"Shop", "GetItemOperation() Operation", ""},
		{"Operations", "GetLast() Operation", ""},
		{"Shop", "GetItem() Nothing", "no fields"},
		{"Shop", "GetItem() Nothing NO_SIDE_EFFECTS", ""},
		{"Shop", "GetItem(stream id) Item", "stream"},
		{"Shop", "GetItem(stream id) Item NO_SIDE_EFFECTS", "stream"},

		{"Shop", "GetItemsOfPage() stream Item", ""},
		{"Queue", "GetEvents() stream Event", "one reader"},
		{"Queue", "GetPodEvents() stream Event", "one reader"},
		{"Queue", "ListEvents() stream Event", ""},
		{"Queue", "GetEvents() Event", ""},
		{"Queue", "GetEvents() stream Event NO_SIDE_EFFECTS", ""},

		{"Queue", "GetTask(worker_id) Task, FinishTask() Nothing", "FinishTask"},
		{"Queue", "GetTasks(worker_id) Task, FinishTask() Nothing", "FinishTask"},
		{"Queue", "GetTask(worker_id) Task, CompleteTasks() Nothing", "CompleteTasks"},
		{"Queue", "GetTask(worker_id) Task, SubmitResult() Nothing", "SubmitResult"},
		{"Queue", "GetTask(worker_id) Task, CompleteActivityTask() Nothing", "CompleteActivityTask"},
		{"Queue", "Get() Message, Ack() Nothing", "Ack"},
		{"Queue", "Get() Message, Push() Nothing", "Push"},
		{"Queue", "Get() Message, AckMessage() Nothing", "AckMessage"},
		{"Queue", "Read() Message, Nack() Nothing", "Nack"},
		{"Queue", "ReadMessages() Message, Ack() Nothing", "Ack"},
		{"Queue", "Get() Message NO_SIDE_EFFECTS, Ack() Nothing", ""},
		{"Queue", "GetTask(task_id) Task, FinishTask() Nothing", ""},
		{"Queue", "GetBuildJob(job_name) Job, SubmitBuildJob() Nothing", ""},
		{"Queue", "GetBuildJob(build_job_ids) Job, SubmitBuildJob() Nothing", ""},
		{"Queue", "ListTasks() Task, FinishTask() Nothing", ""},
		{"Queue", "BatchGetTasks() Task, FinishTask() Nothing", ""},
		{"Queue", "GetPrice() Price, FinishTask() Nothing", ""},
		{"Queue", "GetPrice() Price, Push() Nothing", ""},
		{"Queue", "Get() Value, SubmitForm() Nothing", ""},
		{"Queue", "GetTask() Task, DeleteTask() Nothing", ""},
		{"Queue", "GetTask() Task, VerifyEmail() Nothing", ""},

		{"Login", "GetNonce() Nonce", "Nonce"},
		{"Login", "GetChallenge() Challenge, Authenticate() Session", "Challenge"},
		{"Login", "GetPuzzle() Puzzle, SolvePuzzle() Session", "SolvePuzzle"},
		{"Login", "GetQuestion() Question, AnswerQuestion() Session", "AnswerQuestion"},
		{"Login", "Get() Captcha, Verify() Session", "Verify"},
		{"Login", "GetPuzzle() Puzzle, SolveRiddle() Session", ""},
		{"Login", "CreateItem() Item", "no word that reads"},
		{"Login", "CreateItem() Item NO_SIDE_EFFECTS", ""},
	} {
		v := readonly.ClassifyDescriptor(service(t, c.service, strings.Split(c.methods, ", ")...).Methods().Get(0))
		assert.Equal(t, c.why == "", v.Reads, "%s: %s: %s", c.service, c.methods, v.Reason)
		assert.Contains(t, v.Reason, c.why, c.methods)
		assert.Equal(t, v.Reads && strings.Contains(strings.Split(c.methods, ",")[0], "NO_SIDE"), v.Declared, c.methods)
	}
}

func TestClassifyMethodByNameWithoutDescriptor(t *testing.T) {
	assert.True(t, readonly.ClassifyMethod("/nobody.Knows/GetItem").Reads)
	for _, full := range []string{"/nobody.Knows/CreateItem", "/nobody.Knows/", "", "/", "nonsense", "/GetItem"} {
		v := readonly.ClassifyMethod(full)
		assert.False(t, v.Reads, full)
		assert.NotEmpty(t, v.Reason, full)
	}
}
