// Package vimxml writes values of govmomi's vim25 types as the XML of the vSphere API. It does what govmomi's encoder does, but
// knows each type's fields by index: an inventory of thousands of VMs is millions of elements. Types of polymorphic
// values are written as `xsi:type`, as vSphere does; whoever writes the envelope declares that prefix.
package vimxml

import (
	"bytes"
	stdxml "encoding/xml"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vim25/xml"
)

// Append writes an element of that name. A value that is not there is no element; that of a slice are many. typed elements name
// their type.
func Append(out []byte, name string, value reflect.Value, typed bool) ([]byte, error) {
	for value.Kind() == reflect.Interface || value.Kind() == reflect.Pointer {
		if value.IsNil() {
			return out, nil
		}
		value = value.Elem()
	}
	kind := value.Type()
	if isList(kind) {
		var err error
		for i := range value.Len() {
			if out, err = Append(out, name, value.Index(i), typed); err != nil {
				return out, err
			}
		}
		return out, nil
	}
	shape := shapeOf(kind)
	if shape.isOwn {
		return appendOwn(out, name, value, typed)
	}
	out = append(append(out, '<'), name...)
	if typed {
		out = append(append(append(out, ` xsi:type="`...), shape.name...), '"')
	}
	for i := range shape.attributes {
		out = shape.attributes[i].appendAttribute(out, value)
	}
	out = append(out, '>')
	switch {
	case kind == timeType:
		out = value.Interface().(time.Time).AppendFormat(out, time.RFC3339Nano)
	case kind.Kind() == reflect.Struct:
		var err error
		if out, err = shape.appendFields(out, value); err != nil {
			return out, err
		}
	default:
		out = appendSimple(out, value)
	}
	return append(append(append(out, "</"...), name...), '>'), nil
}

// shape is what is known of a type.
type shape struct {
	name       string // as `xsi:type` has it
	isOwn      bool   // it is left to govmomi's encoder
	attributes []field
	fields     []field
}

type field struct {
	index     []int
	name      string
	typed     bool
	omitEmpty bool
	isText    bool // of the element itself
}

var (
	shapes    sync.Map // *shape by reflect.Type
	timeType  = reflect.TypeFor[time.Time]()
	ownType   = reflect.TypeFor[xml.Marshaler]()
	textType  = reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()
	bytesType = reflect.TypeFor[[]byte]()
)

// isList tells slices that are an element for each of their values.
func isList(kind reflect.Type) bool {
	return kind.Kind() == reflect.Slice && kind.Elem().Kind() != reflect.Uint8
}

func shapeOf(kind reflect.Type) *shape {
	if known, ok := shapes.Load(kind); ok {
		return known.(*shape)
	}
	made := &shape{name: nameOf(kind)}
	marshals := kind.Implements(ownType) || reflect.PointerTo(kind).Implements(ownType) ||
		kind.Implements(textType) || reflect.PointerTo(kind).Implements(textType)
	switch kind.Kind() {
	case reflect.Struct:
		made.isOwn = kind != timeType && (marshals || !made.addFields(kind, nil))
	case reflect.Slice, reflect.Array, reflect.Map:
		made.isOwn = true
	default:
		made.isOwn = marshals
	}
	shapes.Store(kind, made)
	return made
}

// addFields takes in the fields of a struct and of those embedded in it; false if there is one of a kind that only govmomi's
// encoder knows.
func (s *shape) addFields(kind reflect.Type, above []int) bool {
	for i := range kind.NumField() {
		of := kind.Field(i)
		tag := of.Tag.Get("xml")
		if !of.IsExported() && !of.Anonymous || tag == "-" {
			continue
		}
		index := append(slices.Clone(above), i)
		if of.Anonymous && of.Type.Kind() == reflect.Struct {
			if !s.addFields(of.Type, index) {
				return false
			}
			continue
		}
		parts := strings.Split(tag, ",")
		one := field{index: index, name: parts[0]}
		isAttribute := false
		for _, flag := range parts[1:] {
			switch flag {
			case "attr":
				isAttribute = true
			case "chardata":
				one.isText = true
			case "omitempty":
				one.omitEmpty = true
			case "typeattr":
				one.typed = true
			default:
				return false
			}
		}
		if of.Anonymous || of.Name == "XMLName" || strings.ContainsAny(one.name, " >") || one.name == "" && !one.isText {
			return false
		}
		if isAttribute {
			s.attributes = append(s.attributes, one)
			continue
		}
		if at := slices.IndexFunc(s.fields, func(it field) bool { return it.name == one.name }); at >= 0 {
			return false // Which of them counts is govmomi's to say.
		}
		s.fields = append(s.fields, one)
	}
	return true
}

func (f *field) appendAttribute(out []byte, of reflect.Value) []byte {
	value := of.FieldByIndex(f.index)
	for value.Kind() == reflect.Interface || value.Kind() == reflect.Pointer {
		if value.IsNil() {
			return out
		}
		value = value.Elem()
	}
	if f.omitEmpty && isEmpty(value) {
		return out
	}
	out = append(append(append(out, ' '), f.name...), `="`...)
	return append(appendSimple(out, value), '"')
}

func (s *shape) appendFields(out []byte, value reflect.Value) ([]byte, error) {
	for i := range s.fields {
		field := &s.fields[i]
		of := value.FieldByIndex(field.index)
		switch {
		case field.isText:
			out = appendSimple(out, of)
		case field.omitEmpty && isEmpty(of):
		default:
			var err error
			if out, err = Append(out, field.name, of, field.typed); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

func appendSimple(out []byte, value reflect.Value) []byte {
	switch value.Kind() {
	case reflect.String:
		return appendText(out, value.String())
	case reflect.Bool:
		return strconv.AppendBool(out, value.Bool())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.AppendInt(out, value.Int(), 10)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.AppendUint(out, value.Uint(), 10)
	case reflect.Float32, reflect.Float64:
		return strconv.AppendFloat(out, value.Float(), 'g', -1, value.Type().Bits())
	}
	panic(fmt.Sprintf("a %s is no simple value", value.Type()))
}

func appendText(out []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || strings.IndexByte(`&<>"'`, c) >= 0 {
			var escaped bytes.Buffer
			_ = stdxml.EscapeText(&escaped, []byte(text)) // A buffer takes everything.
			return append(out, escaped.Bytes()...)
		}
	}
	return append(out, text...)
}

func isEmpty(value reflect.Value) bool {
	switch value.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map:
		return value.Len() == 0
	case reflect.Struct:
		return false
	}
	return value.IsZero()
}

// appendOwn has govmomi's encoder write a value.
func appendOwn(out []byte, name string, value reflect.Value, typed bool) ([]byte, error) {
	start := xml.StartElement{Name: xml.Name{Local: name}}
	if typed {
		start.Attr = []xml.Attr{{Name: xml.Name{Local: "xsi:type"}, Value: nameOf(value.Type())}}
	}
	var written bytes.Buffer
	err := xml.NewEncoder(&written).EncodeElement(value.Interface(), start)
	return append(out, written.Bytes()...), err
}

var simpleNames = map[reflect.Kind]string{
	reflect.Bool: "xsd:boolean", reflect.Int8: "xsd:byte", reflect.Int16: "xsd:short", reflect.Int32: "xsd:int",
	reflect.Int: "xsd:long", reflect.Int64: "xsd:long", reflect.Uint8: "xsd:unsignedByte", reflect.Uint16: "xsd:unsignedShort",
	reflect.Uint32: "xsd:unsignedInt", reflect.Uint: "xsd:unsignedLong", reflect.Uint64: "xsd:unsignedLong",
	reflect.Float32: "xsd:float", reflect.Float64: "xsd:double",
}

// nameOf is a type's name in the API.
func nameOf(kind reflect.Type) string {
	switch {
	case kind == timeType:
		return "xsd:dateTime"
	case kind == bytesType:
		return "xsd:base64Binary"
	case kind == reflect.TypeFor[string]():
		return "xsd:string"
	}
	if name, ok := simpleNames[kind.Kind()]; ok {
		return name
	}
	return kind.Name()
}

// ArrayOf puts a list into the type that the API has for lists of its kind.
func ArrayOf(list reflect.Value) (reflect.Value, error) {
	kind := strings.TrimPrefix(list.Type().Elem().Name(), "Base")
	if simple, ok := arrayNames[list.Type().Elem().Kind()]; ok && list.Type().Elem().PkgPath() == "" {
		kind = simple
	}
	of, known := types.TypeFunc()("ArrayOf" + kind)
	if !known {
		return reflect.Value{}, fmt.Errorf("no type of lists of %s", list.Type().Elem())
	}
	made := reflect.New(of).Elem()
	made.FieldByName(kind).Set(list.Convert(made.FieldByName(kind).Type()))
	return made, nil
}

var arrayNames = map[reflect.Kind]string{
	reflect.String: "String", reflect.Uint8: "Byte", reflect.Int16: "Short", reflect.Int32: "Int", reflect.Int64: "Long",
}
