package main

import (
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-labeller/gpu-labeller/fleet"
	"github.com/gpu-labeller/gpu-labeller/internal/cli"
)

// fields is a part of a manifest. The API's own types would print fields that
// only the API server sets.
type fields = map[string]any

// writePieces prints each part of a pod under a comment that says what it is for.
func writePieces(out io.Writer, s fleet.Suggestion) error {
	type piece struct {
		comment string
		part    fields
	}
	var pieces []piece
	if s.Selector != nil {
		pieces = append(pieces, piece{"This product:", fields{"nodeSelector": s.Selector}})
	}
	if s.Affinity != nil {
		pieces = append(pieces, piece{affinityComment(s), fields{"affinity": affinity(s)}})
	}
	if len(s.Tolerations) > 0 {
		pieces = append(pieces, piece{"The node is tainted:", fields{"tolerations": s.Tolerations}})
	}
	if s.Limits != nil {
		pieces = append(pieces, piece{"In a container:", fields{"resources": fields{"limits": s.Limits}}})
		for _, other := range others(s) {
			pieces = append(pieces, piece{"Or in its place, as the node offers that, too:", fields{"resources": fields{"limits": fields{other: s.Limits[s.Resources[0]]}}}})
		}
	}
	for i, p := range pieces {
		if i > 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintln(out, "# "+cli.Printable(p.comment))
		if err := writeDocuments(out, []any{p.part}); err != nil {
			return err
		}
	}
	if s.Claim == nil {
		return nil
	}
	fmt.Fprintf(out, "\n# Or with DRA, in the pod and in a container:\n")
	if err := writeDocuments(out, []any{
		fields{"resourceClaims": podClaims(), "resources": fields{"claims": []any{fields{"name": "gpu"}}}},
	}); err != nil {
		return err
	}
	fmt.Fprintln(out, "---")
	fmt.Fprintln(out, "# "+cli.Printable(s.ClaimNote))
	return writeDocuments(out, []any{template(s)})
}

// affinityComment says what the affinity asks for, which is less than the product.
func affinityComment(s fleet.Suggestion) string {
	memory, family := false, false
	for _, e := range s.Affinity.MatchExpressions {
		memory = memory || e.Operator == corev1.NodeSelectorOpGt
		family = family || e.Operator == corev1.NodeSelectorOpIn
	}
	comment := "Any GPU of this vendor:"
	switch {
	case memory && family:
		comment = "Any product of this family with at least as much memory:"
	case memory:
		comment = "Any product with at least as much memory:"
	case family:
		comment = "Any product of this family:"
	}
	if s.Selector == nil {
		return comment
	}
	return "Or a" + comment[1:]
}

// others is what the node offers beside the resource of the limits.
func others(s fleet.Suggestion) []string {
	if len(s.Resources) < 2 {
		return nil
	}
	return s.Resources[1:]
}

// suggestedPod is a pod that asks for the GPUs: with DRA where a driver offers them and
// no device plugin does.
func suggestedPod(s fleet.Suggestion) []any {
	container := fields{"name": "main", "image": "registry.k8s.io/pause:3.10"}
	spec := fields{"restartPolicy": "Never", "containers": []any{container}}
	var documents []any
	switch {
	case s.Limits != nil:
		container["resources"] = fields{"limits": s.Limits}
	case s.Claim != nil:
		container["resources"] = fields{"claims": []any{fields{"name": "gpu"}}}
		spec["resourceClaims"] = podClaims()
		documents = append(documents, template(s))
	}
	if s.Selector != nil {
		spec["nodeSelector"] = s.Selector
	} else if s.Affinity != nil {
		spec["affinity"] = affinity(s)
	}
	if len(s.Tolerations) > 0 {
		spec["tolerations"] = s.Tolerations
	}
	return append(documents, fields{"apiVersion": "v1", "kind": "Pod", "metadata": fields{"name": "gpu"}, "spec": spec})
}

func affinity(s fleet.Suggestion) fields {
	return fields{"nodeAffinity": fields{"requiredDuringSchedulingIgnoredDuringExecution": fields{"nodeSelectorTerms": []any{s.Affinity}}}}
}

const templateName = "gpu"

func podClaims() []any {
	return []any{fields{"name": "gpu", "resourceClaimTemplateName": templateName}}
}

func template(s fleet.Suggestion) fields {
	return fields{
		"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": fields{"name": templateName},
		"spec": fields{"spec": fields{"devices": fields{"requests": []any{s.Claim}}}},
	}
}

func writeDocuments(out io.Writer, documents []any) error {
	for i, d := range documents {
		if i > 0 {
			fmt.Fprintln(out, "---")
		}
		if err := write(out, "yaml", d); err != nil {
			return err
		}
	}
	return nil
}
