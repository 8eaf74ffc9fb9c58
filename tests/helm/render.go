// Renders the templates of a Helm chart, for tests/test_kubernetes.py: values, sprig's functions, include, toYaml, fail and required,
// which is what our chart uses.
//
//	render CHART RELEASE NAMESPACE [VALUES.yaml ...]
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

type values = map[string]interface{}

func stop(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(path string) values {
	text, err := os.ReadFile(path)
	stop(err)
	read := values{}
	stop(yaml.Unmarshal(text, &read))
	return read
}

// Puts what `from` says over `to`, map by map. Returns the first name that `to` does not have: with Helm it would have no effect.
func merge(to, from values, path string) error {
	for name, value := range from {
		old, known := to[name]
		if !known {
			return fmt.Errorf("%s%s: there is no such value", path, name)
		}
		below, isMap := value.(values)
		oldBelow, wasMap := old.(values)
		if isMap && wasMap && len(oldBelow) > 0 {
			if err := merge(oldBelow, below, path+name+"."); err != nil {
				return err
			}
		} else {
			to[name] = value
		}
	}
	return nil
}

func main() {
	if len(os.Args) < 4 {
		stop(fmt.Errorf("usage: render CHART RELEASE NAMESPACE [VALUES.yaml ...]"))
	}
	chart := os.Args[1]
	all := read(filepath.Join(chart, "values.yaml"))
	for _, path := range os.Args[4:] {
		stop(merge(all, read(path), ""))
	}
	set := template.New("chart").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data interface{}) (string, error) {
		var text bytes.Buffer
		err := set.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, fmt.Errorf("%s", message)
		}
		return value, nil
	}
	set.Funcs(functions)

	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	stop(err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		stop(err)
		_, err = set.New(filepath.Base(path)).Parse(string(text))
		stop(err)
	}
	data := values{
		"Values":  all,
		"Chart":   read(filepath.Join(chart, "Chart.yaml")),
		"Release": values{"Name": os.Args[2], "Namespace": os.Args[3], "Service": "Helm"},
	}
	for _, path := range paths {
		if strings.HasPrefix(filepath.Base(path), "_") {
			continue
		}
		var text bytes.Buffer
		stop(set.ExecuteTemplate(&text, filepath.Base(path), data))
		fmt.Printf("---\n%s\n", text.String())
	}
}
