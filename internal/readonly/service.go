package readonly

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// findContradiction returns a reason why the method may write although its name says that it reads, or "" if there is no
// reason. It checks the descriptors of the method and of the other methods of its service.
func findContradiction(m protoreflect.MethodDescriptor) string {
	first, object, _ := splitName(string(m.Name()))
	reply := m.Output()
	switch {
	case reply.Name() == "Operation" && !namesOperation(m):
		return "its reply is an Operation, which it may start"
	case reply.Fields().Len() == 0 && reply.ExtensionRanges().Len() == 0 && !reply.IsPlaceholder():
		return "its reply has no fields, so it reads nothing"
	case first != "Get" && first != "Read": // BatchGet names its objects, and the others take none
		return ""
	case m.IsStreamingServer() && len(object) > 0 && queuedNouns[strings.ToLower(object[len(object)-1])]:
		return "its stream may give each " + object[len(object)-1] + " to one reader"
	case identifiesObject(m.Input(), object):
		return ""
	}
	siblings := m.Parent().(protoreflect.ServiceDescriptor).Methods()
	for i := range siblings.Len() {
		if s := siblings.Get(i).Name(); returnsObject(string(s), object) {
			return "beside " + string(s) + ", what it gets may be given to one caller only"
		}
	}
	return ""
}

// namesOperation reports whether the name of the method or of its service contains "Operation". Such a method may return an
// Operation without starting it.
func namesOperation(m protoreflect.MethodDescriptor) bool {
	return strings.Contains(string(m.Name()), "Operation") || strings.Contains(string(m.Parent().Name()), "Operation")
}

// identifiesObject reports whether the request identifies the object to read, for example with a field job_id for GetJob.
// The argument object holds the words of the object in the method name. A method whose request has no such field may
// take any element of a queue.
func identifiesObject(request protoreflect.MessageDescriptor, object []string) bool {
	object = singularWords(object)
	if len(object) == 0 {
		return false
	}
	whole, last := strings.Join(object, "_"), object[len(object)-1]
	for _, key := range []string{"_id", "_ids", "_uuid", "_name", "_key"} {
		for _, name := range []string{whole + key, last + key} {
			if request.Fields().ByName(protoreflect.Name(name)) != nil {
				return true
			}
		}
	}
	return false
}

// returnsObject reports whether the method with the given name gives back an object to the service. If so, a Get method
// of the service may take the object from a queue, and so does not only read. The argument object holds the words for
// the object in the name of the Get method.
//
// Examples are FinishTask with GetTask, Ack with Get, and SubmitResult with GetTask. Submit with GetPrice is not an
// example.
func returnsObject(name string, object []string) bool {
	verb, handed, ok := splitName(name)
	if !ok || !returningVerbs[strings.ToLower(verb)] {
		return false
	}
	got, handed := singularWords(object), singularWords(handed)
	return slices.Equal(got, handed) || mayNameQueueElement(got) && (mayNameQueueElement(handed) || handed[len(handed)-1] == "result")
}

// mayNameQueueElement reports whether object, the words for an object in a method name, may mean an element of a queue.
// The words must be in lower case and singular. The result is also true for a name without an object, such as Get.
func mayNameQueueElement(object []string) bool {
	return len(object) == 0 || queuedNouns[object[len(object)-1]]
}

// singularWords returns a copy of words in lower case and in singular form.
func singularWords(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		w = strings.ToLower(w)
		if !strings.HasSuffix(w, "ss") && !strings.HasSuffix(w, "us") {
			w = strings.TrimSuffix(w, "s")
		}
		out[i] = w
	}
	return out
}
