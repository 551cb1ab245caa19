package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	strictjson "sigs.k8s.io/json"
)

// knownFields refuses a field that there is not, as kubectl apply does. Of kinds
// that are not Kubernetes' own nobody here knows the fields.
func knownFields(apiVersion, kind string, raw json.RawMessage) error {
	var into any
	switch apiVersion + " " + kind {
	case "v1 Pod":
		into = new(corev1.Pod)
	case "apps/v1 Deployment":
		into = new(appsv1.Deployment)
	case "apps/v1 StatefulSet":
		into = new(appsv1.StatefulSet)
	case "apps/v1 DaemonSet":
		into = new(appsv1.DaemonSet)
	case "apps/v1 ReplicaSet":
		into = new(appsv1.ReplicaSet)
	case "batch/v1 Job":
		into = new(batchv1.Job)
	case "batch/v1 CronJob":
		into = new(batchv1.CronJob)
	case "resource.k8s.io/v1 ResourceClaim":
		into = new(resourcev1.ResourceClaim)
	case "resource.k8s.io/v1 ResourceClaimTemplate":
		into = new(resourcev1.ResourceClaimTemplate)
	default:
		if apiVersion == "" && kind != "" {
			return fmt.Errorf("%s: it has no apiVersion", kind)
		}
		return nil
	}
	unknown, err := strictjson.UnmarshalStrict(raw, into)
	if err != nil {
		return err
	}
	texts := make([]string, len(unknown))
	for i, err := range unknown {
		texts[i] = err.Error()
	}
	if len(texts) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

// admissible refuses what the API server would: a pod without a container, an
// operator that there is not, and a pod that requests what cannot be given twice without limiting it to the same.
func admissible(pod *corev1.Pod) error {
	if len(pod.Spec.Containers) == 0 {
		return fmt.Errorf("pod %s: spec.containers is empty", pod.Name)
	}
	if err := knownOperators(&pod.Spec); err != nil {
		return fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
			for _, name := range slices.Sorted(maps.Keys(list)) {
				if overcommits(name) {
					continue
				}
				q := list[name]
				limit, ok := c.Resources.Limits[name]
				request, requested := c.Resources.Requests[name]
				switch {
				case q.MilliValue()%1000 != 0:
					return fmt.Errorf("pod %s: container %s: %s: %s is not a whole number", pod.Name, c.Name, name, q.String())
				case !ok:
					return fmt.Errorf("pod %s: container %s: %s is requested and not limited, which the API server refuses: write it under resources.limits", pod.Name, c.Name, name)
				case requested && limit.Cmp(request) != 0:
					return fmt.Errorf("pod %s: container %s: %s: the request of %s is not the limit of %s, which the API server refuses: write the limit alone", pod.Name, c.Name, name, request.String(), limit.String())
				}
			}
		}
	}
	return nil
}

// knownOperators refuses operators of node affinity and tolerations that there are
// not. A toleration without one is for Equal. Whether Gt and Lt of tolerations are
// taken is up to the cluster.
func knownOperators(spec *corev1.PodSpec) error {
	ofFields := []corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn}
	ofLabels := append(slices.Clone(ofFields), corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt)
	term := func(path string, t corev1.NodeSelectorTerm) error {
		for i, e := range t.MatchExpressions {
			if err := oneOf(fmt.Sprintf("%s.matchExpressions[%d].operator", path, i), e.Operator, ofLabels); err != nil {
				return err
			}
		}
		for i, e := range t.MatchFields {
			if err := oneOf(fmt.Sprintf("%s.matchFields[%d].operator", path, i), e.Operator, ofFields); err != nil {
				return err
			}
		}
		return nil
	}
	if a := spec.Affinity; a != nil && a.NodeAffinity != nil {
		const path = "spec.affinity.nodeAffinity."
		if required := a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			for i, t := range required.NodeSelectorTerms {
				if err := term(fmt.Sprintf(path+"requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[%d]", i), t); err != nil {
					return err
				}
			}
		}
		for i, t := range a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
			if err := term(fmt.Sprintf(path+"preferredDuringSchedulingIgnoredDuringExecution[%d].preference", i), t.Preference); err != nil {
				return err
			}
		}
	}
	ofTolerations := []corev1.TolerationOperator{"", corev1.TolerationOpExists, corev1.TolerationOpEqual, corev1.TolerationOpLt, corev1.TolerationOpGt}
	for i, t := range spec.Tolerations {
		if err := oneOf(fmt.Sprintf("spec.tolerations[%d].operator", i), t.Operator, ofTolerations); err != nil {
			return err
		}
	}
	return nil
}

func oneOf[T ~string](path string, operator T, known []T) error {
	if slices.Contains(known, operator) {
		return nil
	}
	var names []string
	for _, k := range known {
		if k != "" {
			names = append(names, string(k))
		}
	}
	return fmt.Errorf("%s: %q is none of %s", path, string(operator), strings.Join(names, ", "))
}

// overcommits tells what pods may request less of than they use: Kubernetes' own
// resources, but for huge pages.
func overcommits(name corev1.ResourceName) bool {
	own := !strings.Contains(string(name), "/") || strings.Contains(string(name), "kubernetes.io/")
	return own && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}
