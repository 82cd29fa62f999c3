package readonly

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// findContradiction returns the reason why a method may write although its name says that it reads; "" if there is none. The reason comes from
// the descriptors of the method and of its service.
func findContradiction(m protoreflect.MethodDescriptor) string {
	first, object, _ := splitName(string(m.Name()))
	reply := m.Output()
	switch {
	case reply.Name() == "Operation" && !namesOperation(m):
		return "its reply is an Operation, which it may start"
	case reply.Fields().Len() == 0 && reply.ExtensionRanges().Len() == 0 && !reply.IsPlaceholder():
		return "its reply has no fields, so it reads nothing"
	case first != "Get" && first != "Read": // BatchGet names what it gets, and the others look
		return ""
	case m.IsStreamingServer() && len(object) > 0 && queuedNouns[strings.ToLower(object[len(object)-1])]:
		return "its stream may give each " + object[len(object)-1] + " to one reader"
	case namesItsObject(m.Input(), object):
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

// namesOperation reports whether the name of a method or of its service contains "Operation".
func namesOperation(m protoreflect.MethodDescriptor) bool {
	return strings.Contains(string(m.Name()), "Operation") || strings.Contains(string(m.Parent().Name()), "Operation")
}

// namesItsObject reports whether a request identifies its object, for example by a field job_id in the request of GetJob. A worker that takes
// any job of a queue sends no such field.
func namesItsObject(request protoreflect.MessageDescriptor, object []string) bool {
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

// returnsObject reports whether a method of the name hands back the object that a Get in the same service gave: FinishTask beside
// GetTask, Ack beside Get, SubmitResult beside GetTask, but not Submit beside GetPrice.
func returnsObject(name string, object []string) bool {
	verb, handed, ok := splitName(name)
	if !ok || !returningVerbs[strings.ToLower(verb)] {
		return false
	}
	got, handed := singularWords(object), singularWords(handed)
	return slices.Equal(got, handed) || mayNameQueueElement(got) && (mayNameQueueElement(handed) || handed[len(handed)-1] == "result")
}

// mayNameQueueElement reports whether the name of an object may name an element of a queue. It is true for a method name without an object.
func mayNameQueueElement(object []string) bool {
	return len(object) == 0 || queuedNouns[object[len(object)-1]]
}

// singularWords returns the words in lower case and in the singular.
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
